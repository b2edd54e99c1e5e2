(* Reductions of values over a range of any size, as instances of Monoid.reduce, and what is known of maxima and sums. *)

From Coq Require Import Reals Lra List Lia Bool.
From Onepass Require Import Monoid Cascade Values.
Import ListNotations.
Open Scope R_scope.

Definition over {A : Type} (op : A -> A -> A) (unit : A) (size : nat) (f : nat -> A) : A :=
  reduce A op unit (map f (seq 0 size)).

Definition sum_over := over plus (Number 0).
Definition product_over := over times (Number 1).
Definition highest_over := over larger Below.
Definition lowest_over := over smaller Above.
Definition any_over := over orb false.
Definition all_over := over andb true.
(* The monoid of rescaled sums: the merge of Cascade for scales, maxima and products with e^(old - new). *)
Definition merge : partial_sum -> partial_sum -> partial_sum := combine value value larger plus rescaled.
Definition merged_over := over merge None.

Lemma reduce_cons : forall A X (op : A -> A -> A) unit (f : X -> A) x l,
  reduce A op unit (map f (x :: l)) = op (f x) (reduce A op unit (map f l)).
Proof. reflexivity. Qed.

Lemma reduce_nil : forall A X (op : A -> A -> A) unit (f : X -> A), reduce A op unit (map f []) = unit.
Proof. reflexivity. Qed.

Lemma range_has_an_element : forall size, (0 < size)%nat -> exists i l, seq 0 size = i :: l.
Proof. intros [|n] positive; [lia|]; exists 0%nat, (seq 1 n); reflexivity. Qed.

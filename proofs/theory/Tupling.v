(* Two reductions of one range in one loop ("banana split"): numerator and denominator of a weighted mean, for instance.

   Neither operation needs a law: the loop of pairs does what the two loops did. No axiom is used. *)

From Coq Require Import List.
From Onepass Require Import Monoid.
Import ListNotations.

Section Tupling.
  Variables (A B : Type) (op : A -> A -> A) (unit : A) (op' : B -> B -> B) (unit' : B).

  Definition both (x y : A * B) : A * B := (op (fst x) (fst y), op' (snd x) (snd y)).

  Theorem tuple : forall l,
    reduce (A * B) both (unit, unit') l = (reduce A op unit (map fst l), reduce B op' unit' (map snd l)).
  Proof.
    induction l as [|x l IH]; simpl.
    - reflexivity.
    - rewrite IH; reflexivity.
  Qed.

  Theorem tuple_stream : forall l,
    stream (A * B) both (unit, unit') l = (stream A op unit (map fst l), stream B op' unit' (map snd l)).
  Proof.
    unfold stream; intro l; generalize unit unit'.
    induction l as [|x l IH]; intros a b; simpl.
    - reflexivity.
    - unfold both at 2; simpl; apply IH.
  Qed.
End Tupling.

(* The same for two loops whose steps are any functions at all. *)
Theorem banana_split : forall X S T (f : S -> X -> S) (g : T -> X -> T) l s t,
  fold_left (fun (p : S * T) x => (f (fst p) x, g (snd p) x)) l (s, t) = (fold_left f l s, fold_left g l t).
Proof.
  intros X S T f g; induction l as [|x l IH]; intros s t; simpl.
  - reflexivity.
  - apply IH.
Qed.

(* What moves through a reduction: exactly the maps that respect the operation and its unit.

   A factor or a divisor leaves a sum, a shift leaves a maximum, a linear map is applied once to the total instead of to
   every term. And what changes nothing of it: a map that fixes all that is folded. No axiom is used. *)

From Coq Require Import List.
From Onepass Require Import Monoid.
Import ListNotations.

Section Homomorphism.
  Variables (A B : Type) (op : A -> A -> A) (unit : A) (op' : B -> B -> B) (unit' : B) (phi : A -> B).
  Hypothesis phi_unit : phi unit = unit'.
  Hypothesis phi_op : forall x y, phi (op x y) = op' (phi x) (phi y).

  (* phi (x1 + ... + xn) = phi x1 +' ... +' phi xn *)
  Theorem promote : forall l, phi (reduce A op unit l) = reduce B op' unit' (map phi l).
  Proof.
    induction l as [|x l IH]; simpl.
    - exact phi_unit.
    - rewrite phi_op, IH; reflexivity.
  Qed.

  (* Over a range that is not empty the unit does not enter: maxima without a least element. *)
  Theorem promote_nonempty : forall l x, phi (fold_left op l x) = fold_left op' (map phi l) (phi x).
  Proof.
    induction l as [|y l IH]; intro x; simpl.
    - reflexivity.
    - rewrite IH, phi_op; reflexivity.
  Qed.

  (* Deferred normalisation: the loop accumulates raw terms, and phi (a division, a linear map) is applied once to the
     state it leaves, instead of to every term. *)
  Theorem deferred : forall X (f : X -> A) l,
    phi (stream A op unit (map f l)) = stream B op' unit' (map (fun x => phi (f x)) l).
  Proof.
    intros X f l; unfold stream; rewrite promote_nonempty, map_map, phi_unit; reflexivity.
  Qed.
End Homomorphism.

(* A map of which every element is a fixed point, where fixed points are closed under the operation: a maximum with 0 of
   a sum of squares, for instance. *)
Section Fixed.
  Variables (A X : Type) (op : A -> A -> A) (unit : A) (phi : A -> A) (f : X -> A).
  Hypothesis fixed_unit : phi unit = unit.
  Hypothesis fixed_op : forall x y, phi (op (phi x) (phi y)) = op (phi x) (phi y).
  Hypothesis fixed_element : forall x, phi (f x) = f x.

  Theorem fixed : forall l, phi (reduce A op unit (map f l)) = reduce A op unit (map f l).
  Proof.
    induction l as [|x l IH]; simpl.
    - exact fixed_unit.
    - rewrite <- (fixed_element x), <- IH; apply fixed_op.
  Qed.
End Fixed.

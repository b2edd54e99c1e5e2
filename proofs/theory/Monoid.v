(* Reductions by an associative operation with a unit.

   A reduction is determined by what it folds, not by how: tiles, serial loops, trees of partial results and (when the
   operation commutes) any order give the same value. Lists have any length, elements any type; no axiom is used. *)

From Coq Require Import List Permutation.
Import ListNotations.

(* One way to cut a range and to merge the parts: the leaves are tiles, possibly empty, read from left to right. *)
Inductive tree (X : Type) : Type :=
  | leaf (tile : list X)
  | node (front back : tree X).
Arguments leaf {X} tile.
Arguments node {X} front back.

Fixpoint fringe {X} (t : tree X) : list X :=
  match t with
  | leaf tile => tile
  | node front back => fringe front ++ fringe back
  end.

Section Monoid.
  Variables (A : Type) (op : A -> A -> A) (unit : A).
  Hypothesis op_assoc : forall x y z, op x (op y z) = op (op x y) z.
  Hypothesis op_unit_left : forall x, op unit x = x.
  Hypothesis op_unit_right : forall x, op x unit = x.
  Hypothesis op_comm : forall x y, op x y = op y x.

  (* x1 + (x2 + (... + unit)), the specification, and the serial loop ((unit + x1) + x2) + ... *)
  Definition reduce (l : list A) : A := fold_right op unit l.
  Definition stream (l : list A) : A := fold_left op l unit.

  Theorem split : forall l k, reduce (l ++ k) = op (reduce l) (reduce k).
  Proof.
    intros l k; induction l as [|x l IH]; simpl.
    - symmetry; apply op_unit_left.
    - rewrite IH; apply op_assoc.
  Qed.

  (* Tiling, split-K and ragged tails: reduce the tiles, then what they gave. *)
  Theorem tile : forall tiles, reduce (concat tiles) = reduce (map reduce tiles).
  Proof.
    induction tiles as [|t tiles IH]; simpl.
    - reflexivity.
    - rewrite split, IH; reflexivity.
  Qed.

  Lemma stream_from : forall l start, fold_left op l start = op start (reduce l).
  Proof.
    induction l as [|x l IH]; intro start; simpl.
    - symmetry; apply op_unit_right.
    - rewrite IH; symmetry; apply op_assoc.
  Qed.

  (* The serial loop computes the reduction. *)
  Theorem stream_reduce : forall l, stream l = reduce l.
  Proof. intro l; unfold stream; rewrite stream_from; apply op_unit_left. Qed.

  (* The serial loop over tiles, each reduced on its own. *)
  Theorem stream_tiles : forall tiles, stream (map reduce tiles) = reduce (concat tiles).
  Proof. intro tiles; rewrite stream_reduce, tile; reflexivity. Qed.

  Fixpoint merged (t : tree A) : A :=
    match t with
    | leaf tile => stream tile
    | node front back => op (merged front) (merged back)
    end.

  (* Partial results merge in any tree of splits. *)
  Theorem merge_tree : forall t, merged t = reduce (fringe t).
  Proof.
    induction t as [l|front IHfront back IHback]; simpl.
    - apply stream_reduce.
    - rewrite IHfront, IHback, split; reflexivity.
  Qed.

  (* A masked element is absent: it stands for the unit, or is not visited at all. *)
  Theorem absent : forall X (kept : X -> bool) (f : X -> A) l,
    reduce (map (fun x => if kept x then f x else unit) l) = reduce (map f (filter kept l)).
  Proof.
    intros X kept f; induction l as [|x l IH]; simpl.
    - reflexivity.
    - destruct (kept x); simpl; rewrite IH.
      + reflexivity.
      + apply op_unit_left.
  Qed.

  Lemma op_exchange : forall w x y z, op (op w x) (op y z) = op (op w y) (op x z).
  Proof.
    intros; rewrite <- !op_assoc; f_equal; rewrite !op_assoc; f_equal; apply op_comm.
  Qed.

  (* Two reductions over one range are the reduction of their elementwise combination. *)
  Theorem pointwise : forall X (f g : X -> A) l,
    reduce (map (fun x => op (f x) (g x)) l) = op (reduce (map f l)) (reduce (map g l)).
  Proof.
    intros X f g; induction l as [|x l IH]; simpl.
    - symmetry; apply op_unit_left.
    - rewrite IH; apply op_exchange.
  Qed.

  Lemma reduce_of_units : forall X (l : list X), reduce (map (fun _ => unit) l) = unit.
  Proof. intros X; induction l as [|x l IH]; simpl; [|rewrite IH, op_unit_left]; reflexivity. Qed.

  (* Two loops change places. *)
  Theorem fubini : forall I J (f : I -> J -> A) rows columns,
    reduce (map (fun i => reduce (map (f i) columns)) rows)
    = reduce (map (fun j => reduce (map (fun i => f i j) rows)) columns).
  Proof.
    intros I J f rows columns; induction rows as [|i rows IH]; simpl.
    - symmetry; apply reduce_of_units.
    - rewrite IH, pointwise; reflexivity.
  Qed.

  (* A guard cuts a range in two parts that are reduced apart: empty, full and partial tiles may be visited in turn. *)
  Theorem partition : forall X (kept : X -> bool) (f : X -> A) l,
    reduce (map f l) = op (reduce (map f (filter kept l))) (reduce (map f (filter (fun x => negb (kept x)) l))).
  Proof.
    intros X kept f l; rewrite <- !absent, <- pointwise; f_equal; apply map_ext; intro x.
    destruct (kept x); simpl.
    - rewrite op_comm, op_unit_left; reflexivity.
    - rewrite op_unit_left; reflexivity.
  Qed.

  (* Any order of visiting. *)
  Theorem reorder : forall l k, Permutation l k -> reduce l = reduce k.
  Proof.
    induction 1 as [|x l k _ IH|x y l|l k h _ IH _ IH']; simpl.
    - reflexivity.
    - rewrite IH; reflexivity.
    - rewrite !op_assoc, (op_comm x y); reflexivity.
    - rewrite IH; exact IH'.
  Qed.
End Monoid.

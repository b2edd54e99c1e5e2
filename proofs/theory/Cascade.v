(* Cascades: a reduction whose terms need the finished value of an earlier one, done in one pass.

   Each element x has a gauge; gauges join to the gauge of a range (for softmax: scores and their maximum). What is
   summed is view m x, the element seen from the gauge m of the whole range, so two passes seem to be needed. If views
   can be rescaled from one gauge to another, a state that carries its own gauge is enough, and such states form a
   monoid: they tile, stream, split and merge like any other reduction. A state that saw nothing is None. No axiom is
   used. *)

From Coq Require Import List.
From Onepass Require Import Monoid.
Import ListNotations.

Section Cascade.
  Variables (M A X : Type) (join : M -> M -> M) (op : A -> A -> A).
  Variables (rescale : M -> M -> A -> A) (gauge : X -> M) (view : M -> X -> A).

  Hypothesis join_assoc : forall x y z, join x (join y z) = join (join x y) z.
  Hypothesis join_comm : forall x y, join x y = join y x.
  Hypothesis op_assoc : forall x y z, op x (op y z) = op (op x y) z.
  Hypothesis op_comm : forall x y, op x y = op y x.
  (* rescale m n a: what is a seen from gauge m is this seen from gauge n *)
  Hypothesis rescale_compose : forall m n p a, rescale n p (rescale m n a) = rescale m p a.
  Hypothesis rescale_distributes : forall m n a b, rescale m n (op a b) = op (rescale m n a) (rescale m n b).
  Hypothesis rescale_view : forall m n x, rescale m n (view m x) = view n x.

  Definition state : Type := option (M * A).

  Definition combine (s t : state) : state :=
    match s, t with
    | None, _ => t
    | _, None => s
    | Some (m, a), Some (n, b) => let k := join m n in Some (k, op (rescale m k a) (rescale n k b))
    end.

  Theorem combine_assoc : forall s t u, combine s (combine t u) = combine (combine s t) u.
  Proof.
    intros [[m a]|] [[n b]|] [[p c]|]; simpl; try reflexivity.
    rewrite join_assoc, !rescale_distributes, !rescale_compose, op_assoc; reflexivity.
  Qed.

  Theorem combine_unit_left : forall s, combine None s = s.
  Proof. intros [[m a]|]; reflexivity. Qed.

  Theorem combine_unit_right : forall s, combine s None = s.
  Proof. intros [[m a]|]; reflexivity. Qed.

  Theorem combine_comm : forall s t, combine s t = combine t s.
  Proof.
    intros [[m a]|] [[n b]|]; simpl; try reflexivity.
    rewrite (join_comm n m), op_comm; reflexivity.
  Qed.

  (* The specification in two passes, for a range x, l1, ..., ln: its gauge, and the sum of the views from a gauge. *)
  Fixpoint gauges (x : X) (l : list X) : M :=
    match l with [] => gauge x | y :: t => join (gauge x) (gauges y t) end.
  Fixpoint total (m : M) (x : X) (l : list X) : A :=
    match l with [] => view m x | y :: t => op (view m x) (total m y t) end.

  Definition inject (x : X) : state := Some (gauge x, view (gauge x) x).
  Definition two_pass (l : list X) : state :=
    match l with [] => None | x :: t => Some (gauges x t, total (gauges x t) x t) end.

  (* A sum may be finished from any gauge and moved to any other. *)
  Theorem total_rescale : forall l m n x, rescale m n (total m x l) = total n x l.
  Proof.
    induction l as [|y l IH]; intros m n x; simpl.
    - apply rescale_view.
    - rewrite rescale_distributes, rescale_view, IH; reflexivity.
  Qed.

  (* One pass computes what two passes specify. *)
  Theorem cascade : forall l, reduce state combine None (map inject l) = two_pass l.
  Proof.
    induction l as [|x l IH]; simpl.
    - reflexivity.
    - rewrite IH; destruct l as [|y l]; simpl.
      + reflexivity.
      + rewrite rescale_view, total_rescale; reflexivity.
  Qed.

  (* So does the serial loop, *)
  Theorem cascade_stream : forall l, stream state combine None (map inject l) = two_pass l.
  Proof.
    intro l; rewrite stream_reduce by
      (apply combine_assoc || apply combine_unit_left || apply combine_unit_right).
    apply cascade.
  Qed.

  (* the serial loop over tiles, *)
  Theorem cascade_tiles : forall tiles,
    stream state combine None (map (fun l => two_pass l) tiles) = two_pass (concat tiles).
  Proof.
    intro tiles; rewrite stream_reduce by
      (apply combine_assoc || apply combine_unit_left || apply combine_unit_right).
    induction tiles as [|l tiles IH]; simpl.
    - reflexivity.
    - rewrite IH, <- !cascade, map_app, split by
        (apply combine_assoc || apply combine_unit_left).
      reflexivity.
  Qed.

  Fixpoint merged_states (t : tree X) : state :=
    match t with
    | leaf l => stream state combine None (map inject l)
    | node front back => combine (merged_states front) (merged_states back)
    end.

  (* and partial states merged in any tree of splits, empty parts included. *)
  Theorem cascade_tree : forall t, merged_states t = two_pass (fringe t).
  Proof.
    induction t as [l|front IHfront back IHback]; simpl.
    - apply cascade_stream.
    - rewrite IHfront, IHback, <- !cascade, map_app, split by
        (apply combine_assoc || apply combine_unit_left).
      reflexivity.
  Qed.

  (* A masked element is absent: the loop may inject None, or skip it. *)
  Theorem cascade_absent : forall (kept : X -> bool) l,
    stream state combine None (map (fun x => if kept x then inject x else None) l) = two_pass (filter kept l).
  Proof.
    intros kept l; rewrite stream_reduce, absent, cascade by
      (apply combine_assoc || apply combine_unit_left || apply combine_unit_right).
    reflexivity.
  Qed.

  (* Rescaling policies. A loop may take any next gauge it likes, given its own and the element's: the join at every
     step (eager), its own while that is good enough (lazy), the first one for ever. *)
  Section Policy.
    Variable policy : M -> M -> M.

    Definition step (s : M * A) (x : X) : M * A :=
      let (m, a) := s in let k := policy m (gauge x) in (k, op (rescale m k a) (view k x)).
    Definition lazy_stream (x : X) (l : list X) : M * A := fold_left step l (gauge x, view (gauge x) x).

    Lemma total_last : forall l m x y, total m x (l ++ [y]) = op (total m x l) (view m y).
    Proof.
      induction l as [|z l IH]; intros m x y; simpl.
      - reflexivity.
      - rewrite IH; apply op_assoc.
    Qed.

    (* Whatever the policy, the loop's sum is the range's sum seen from the loop's gauge. *)
    Theorem lazy_total : forall l x, snd (lazy_stream x l) = total (fst (lazy_stream x l)) x l.
    Proof.
      intros l x; induction l as [|y l IH] using rev_ind; simpl.
      - reflexivity.
      - unfold lazy_stream in *; rewrite fold_left_app; simpl; unfold step at 1 3.
        destruct (fold_left step l _) as [m a]; simpl in *.
        rewrite IH, total_rescale, total_last; reflexivity.
    Qed.
  End Policy.

  (* What is read from a state must not depend on its gauge (a quotient of two sums, gauge and logarithm together). *)
  Variables (B : Type) (readout : M -> A -> B).
  Hypothesis readout_rescale : forall m n a, readout n (rescale m n a) = readout m a.

  (* Then any two policies give the same result, *)
  Theorem any_policy : forall policy policy' l x,
    let s := lazy_stream policy x l in let t := lazy_stream policy' x l in
    readout (fst s) (snd s) = readout (fst t) (snd t).
  Proof.
    intros policy policy' l x s t; unfold s, t; rewrite !lazy_total.
    rewrite <- (readout_rescale _ (fst (lazy_stream policy' x l))), total_rescale; reflexivity.
  Qed.

  (* and so does the two-pass specification. *)
  Theorem any_policy_two_pass : forall policy l x,
    let s := lazy_stream policy x l in
    readout (fst s) (snd s) = readout (gauges x l) (total (gauges x l) x l).
  Proof.
    intros policy l x s; unfold s; rewrite lazy_total.
    rewrite <- (readout_rescale _ (gauges x l)), total_rescale; reflexivity.
  Qed.

  (* Rescaling at the end: every part (m, x, l) is summed from a gauge m of its own, and the sums are brought to one
     gauge k when all are done. *)
  Definition part : Type := M * X * list X.
  Definition elements (p : part) : list X := let '(_, x, l) := p in x :: l.
  Definition brought (k : M) (p : part) : A := let '(m, x, l) := p in rescale m k (total m x l).
  Fixpoint brought_total (k : M) (p : part) (ps : list part) : A :=
    match ps with [] => brought k p | q :: t => op (brought k p) (brought_total k q t) end.
  Definition total_of (m : M) (l : list X) : option A := match l with [] => None | x :: t => Some (total m x t) end.

  Lemma total_app : forall l m x y k, total m x (l ++ y :: k) = op (total m x l) (total m y k).
  Proof.
    induction l as [|z l IH]; intros m x y k; simpl.
    - reflexivity.
    - rewrite IH; apply op_assoc.
  Qed.

  Theorem rescale_at_the_end : forall ps p k,
    total_of k (concat (map elements (p :: ps))) = Some (brought_total k p ps).
  Proof.
    induction ps as [|q ps IH]; intros [[m x] l] k; simpl.
    - rewrite app_nil_r, total_rescale; reflexivity.
    - specialize (IH q k); destruct q as [[n y] h]; simpl in *.
      injection IH as IH; rewrite total_app, IH, total_rescale; reflexivity.
  Qed.
End Cascade.

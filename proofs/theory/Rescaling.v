(* When to rescale a running softmax: at every step, only when the maximum moved far, or once at the end.

   The reference value cancels in the quotient, so all three give attention; they differ in work and in how large the
   intermediate exponentials may grow, which is bounded here. Axioms: those of Rocq's reals. *)

From Coq Require Import Reals List Lra.
From Onepass Require Import Cascade Softmax.
Import ListNotations.
Open Scope R_scope.

(* The loop under a policy that answers the next gauge from the present one and the element's score. *)
Definition running (policy : R -> R -> R) (e : element) (l : list element) : R * R :=
  lazy_stream R R element Rplus rescale score view policy e l.

Definition eager : R -> R -> R := Rmax.
Definition lazy (bound m s : R) : R := if Rle_dec s (m + bound) then m else s.

Lemma running_gauge : forall policy l e, fst (running policy e l) = fold_left policy (map score l) (score e).
Proof.
  intros policy l e; unfold running, lazy_stream; simpl.
  generalize (score e) as m, (view (score e) e) as a; induction l as [|f l IH]; intros m a; simpl.
  - reflexivity.
  - apply IH.
Qed.

(* The two loops of a policy see the same scores, so they share their gauges; whatever these are, they cancel. *)
Theorem any_policy_attention : forall policy e l,
  let s := running policy e l in let t := running policy (score e, 1) (unweighted l) in
  fst s = fst t /\ snd t <> 0 /\ snd s / snd t = attention (e :: l).
Proof.
  intros policy e l s t.
  assert (same : fst s = fst t) by
    (unfold s, t; rewrite !running_gauge; unfold unweighted; rewrite map_map; reflexivity).
  assert (nonempty : e :: l <> []) by discriminate.
  assert (numerator : snd s = shifted (fst s) (e :: l)) by
    (rewrite <- total_is_shifted; apply lazy_total;
     [exact plus_assoc | exact softmax_rescale_distributes | exact softmax_rescale_view]).
  assert (below : snd t = shifted (fst t) (unweighted (e :: l))) by
    (simpl; rewrite <- total_is_shifted; apply lazy_total;
     [exact plus_assoc | exact softmax_rescale_distributes | exact softmax_rescale_view]).
  rewrite numerator, below, <- same; repeat split.
  - apply Rgt_not_eq, denominator_positive, nonempty.
  - apply any_gauge, nonempty.
Qed.

Theorem eager_rescaling : forall e l,
  snd (running eager e l) / snd (running eager (score e, 1) (unweighted l)) = attention (e :: l).
Proof. intros e l; apply (any_policy_attention eager). Qed.

Theorem lazy_rescaling : forall bound e l,
  snd (running (lazy bound) e l) / snd (running (lazy bound) (score e, 1) (unweighted l)) = attention (e :: l).
Proof. intros bound e l; apply (any_policy_attention (lazy bound)). Qed.

(* The lazy gauge never falls behind a score by more than the bound, so no exponential exceeds e^bound, *)
Lemma lazy_gauge_close : forall bound l m s, 0 <= bound ->
  (s <= m + bound \/ In s l) -> s <= fold_left (lazy bound) l m + bound.
Proof.
  intros bound; induction l as [|r l IH]; intros m s positive [near|within]; simpl.
  - exact near.
  - destruct within.
  - apply IH; [exact positive|]; left; unfold lazy; destruct (Rle_dec r (m + bound)); lra.
  - destruct within as [<-|within]; apply IH; auto.
    left; unfold lazy; destruct (Rle_dec r (m + bound)); lra.
Qed.

Theorem lazy_exponential_bounded : forall bound e l f, 0 <= bound -> In f (e :: l) ->
  exp (score f - fst (running (lazy bound) e l)) <= exp bound.
Proof.
  intros bound e l f positive within; rewrite running_gauge.
  assert (close : score f <= fold_left (lazy bound) (map score l) (score e) + bound).
  { apply lazy_gauge_close; [exact positive|]; destruct within as [<-|within].
    - left; lra.
    - right; apply in_map; exact within. }
  destruct (Req_dec (score f - fold_left (lazy bound) (map score l) (score e)) bound) as [->|]; [apply Rle_refl|].
  apply Rlt_le, exp_increasing; lra.
Qed.

(* and it is one of the scores, so the denominator is still at least 1. *)
Lemma lazy_gauge_within : forall bound l m,
  fold_left (lazy bound) l m = m \/ In (fold_left (lazy bound) l m) l.
Proof.
  intros bound; induction l as [|r l IH]; intro m; simpl; [left; reflexivity|].
  destruct (IH (lazy bound m r)) as [same|within]; [rewrite same|right; right; exact within].
  unfold lazy; destruct (Rle_dec r (m + bound)); auto.
Qed.

Theorem lazy_denominator_at_least_one : forall bound e l,
  1 <= shifted (fst (running (lazy bound) e l)) (unweighted (e :: l)).
Proof.
  intros bound e l; rewrite running_gauge.
  assert (found : exists f, In f (e :: l) /\ score f = fold_left (lazy bound) (map score l) (score e)).
  { destruct (lazy_gauge_within bound (map score l) (score e)) as [->|within].
    - exists e; simpl; auto.
    - apply in_map_iff in within as (f & same & within); exists f; simpl; auto. }
  destruct found as (f & within & <-).
  pose proof (at_least_one_term (score f) (e :: l) f within) as term.
  rewrite Rminus_diag_eq, exp_0 in term by reflexivity; exact term.
Qed.

(* Rescaling at the end: tiles are summed from reference values of their own (a bound on the scores, a tile's own
   maximum, 0), and brought to one value k when all are done. *)
Notation tile := (part R element).
Definition unweighted_tile (t : tile) : tile := let '(m, e, l) := t in (m, (score e, 1), unweighted l).
Definition all_elements (t : tile) (ts : list tile) : list element := concat (map (elements R element) (t :: ts)).
Definition at_the_end (k : R) (t : tile) (ts : list tile) : R :=
  brought_total R R element Rplus rescale view k t ts.

Lemma at_the_end_is_shifted : forall k t ts, at_the_end k t ts = shifted k (all_elements t ts).
Proof.
  intros k t ts; unfold at_the_end, all_elements.
  pose proof (rescale_at_the_end R R element Rplus rescale view plus_assoc softmax_rescale_distributes
    softmax_rescale_view ts t k) as total.
  destruct (concat (map (elements R element) (t :: ts))) as [|e l]; simpl in total; [discriminate|].
  injection total as <-; apply total_is_shifted.
Qed.

Lemma all_unweighted : forall ts t,
  all_elements (unweighted_tile t) (map unweighted_tile ts) = unweighted (all_elements t ts).
Proof.
  unfold all_elements, unweighted; induction ts as [|u ts IH]; intros [[m e] l]; simpl in *.
  - rewrite !app_nil_r; reflexivity.
  - rewrite IH; unfold unweighted; rewrite !map_app; reflexivity.
Qed.

Theorem rescaling_at_the_end : forall k t ts,
  at_the_end k t ts / at_the_end k (unweighted_tile t) (map unweighted_tile ts) = attention (all_elements t ts).
Proof.
  intros k t ts; rewrite !at_the_end_is_shifted, all_unweighted; apply any_gauge.
  unfold all_elements; destruct t as [[m e] l]; discriminate.
Qed.

(* Powers of two in place of exponentials: scores are multiplied by log2 e, once. *)
Theorem base_two : forall s m, exp (s - m) = Rpower 2 (s * / ln 2 - m * / ln 2).
Proof.
  intros s m; unfold Rpower; f_equal; field.
  apply Rgt_not_eq; rewrite <- ln_1; apply ln_increasing; lra.
Qed.

(* Online softmax is a cascade over the reals, and streaming attention equals its definition.

   An element is a key's score s and its weight w (one component of its value; a vector is a family of such lists).
   The gauge is the score, gauges join by the maximum, and w·e^(s-m) is the view from m. Axioms: those of Rocq's
   reals. *)

From Coq Require Import Reals List Lra.
From Onepass Require Import Monoid Cascade.
Import ListNotations.
Open Scope R_scope.

Definition element : Type := R * R.
Definition score (e : element) : R := fst e.
Definition weight (e : element) : R := snd e.
Definition unweighted (l : list element) : list element := map (fun e => (score e, 1)) l.

Definition sum (l : list R) : R := reduce R Rplus 0 l.

(* The definition: attention l = Σ_i softmax(s)_i · w_i with softmax(s)_i = e^(s_i) / Σ_j e^(s_j). *)
Definition denominator (l : list element) : R := sum (map (fun e => exp (score e)) l).
Definition softmax (l : list element) (e : element) : R := exp (score e) / denominator l.
Definition attention (l : list element) : R := sum (map (fun e => softmax l e * weight e) l).

(* The sum from a gauge m: Σ w·e^(s-m). *)
Definition shifted (m : R) (l : list element) : R := sum (map (fun e => weight e * exp (score e - m)) l).

(* The parameters of the cascade, and its hypotheses. *)
Definition rescale (m n a : R) : R := a * exp (m - n).
Definition view (m : R) (e : element) : R := weight e * exp (score e - m).

Lemma exp_compose : forall a b c, exp (a - b) * exp (b - c) = exp (a - c).
Proof. intros; rewrite <- exp_plus; f_equal; ring. Qed.

Theorem max_assoc : forall x y z, Rmax x (Rmax y z) = Rmax (Rmax x y) z.
Proof. exact Rmax_assoc. Qed.
Theorem max_comm : forall x y, Rmax x y = Rmax y x.
Proof. exact Rmax_comm. Qed.
Theorem plus_assoc : forall x y z, x + (y + z) = (x + y) + z.
Proof. intros; ring. Qed.
Theorem softmax_rescale_compose : forall m n p a, rescale n p (rescale m n a) = rescale m p a.
Proof. intros; unfold rescale; rewrite Rmult_assoc, exp_compose; reflexivity. Qed.
Theorem softmax_rescale_distributes : forall m n a b, rescale m n (a + b) = rescale m n a + rescale m n b.
Proof. intros; unfold rescale; ring. Qed.
Theorem softmax_rescale_view : forall m n e, rescale m n (view m e) = view n e.
Proof. intros; unfold rescale, view; rewrite Rmult_assoc, exp_compose; reflexivity. Qed.

Notation row := (state R R).
Notation merge := (combine R R Rmax Rplus rescale).
Notation inject := (Cascade.inject R R element score view).
Notation two_pass := (Cascade.two_pass R R element Rmax Rplus score view).
Definition online (l : list element) : row := stream row merge None (map inject l).

Theorem merge_assoc : forall s t u : row, merge s (merge t u) = merge (merge s t) u.
Proof.
  apply combine_assoc;
    [exact max_assoc | exact plus_assoc | exact softmax_rescale_compose | exact softmax_rescale_distributes].
Qed.

Theorem merge_comm : forall s t : row, merge s t = merge t s.
Proof. apply combine_comm; [exact max_comm | exact Rplus_comm]. Qed.

(* The largest score of a range that is not empty. *)
Definition highest (l : list element) : R :=
  match l with [] => 0 | e :: t => gauges R element Rmax score e t end.

Lemma total_is_shifted : forall l m e, total R R element Rplus view m e l = shifted m (e :: l).
Proof.
  induction l as [|f l IH]; intros m e; simpl.
  - unfold shifted, view; simpl; ring.
  - rewrite IH; unfold shifted, view; simpl; reflexivity.
Qed.

Lemma two_pass_is_shifted : forall l, l <> [] -> two_pass l = Some (highest l, shifted (highest l) l).
Proof. intros [|e l] nonempty; [congruence|]; simpl; rewrite total_is_shifted; reflexivity. Qed.

(* One pass computes the maximum and, from it, the shifted sum. *)
Theorem online_softmax : forall l, l <> [] -> online l = Some (highest l, shifted (highest l) l).
Proof.
  intros l nonempty; unfold online; rewrite cascade_stream.
  - apply two_pass_is_shifted, nonempty.
  - exact max_assoc.
  - exact plus_assoc.
  - exact softmax_rescale_compose.
  - exact softmax_rescale_distributes.
  - exact softmax_rescale_view.
Qed.

(* In any tree of splits: tiles, split-KV, states from other processors. *)
Theorem merge_any_tree : forall t, fringe t <> [] ->
  merged_states R R element Rmax Rplus rescale score view t
  = Some (highest (fringe t), shifted (highest (fringe t)) (fringe t)).
Proof.
  intros t nonempty; rewrite cascade_tree.
  - apply two_pass_is_shifted, nonempty.
  - exact max_assoc.
  - exact plus_assoc.
  - exact softmax_rescale_compose.
  - exact softmax_rescale_distributes.
  - exact softmax_rescale_view.
Qed.

(* Definedness: the denominator is positive from every gauge, *)
Theorem denominator_positive : forall m l, l <> [] -> 0 < shifted m (unweighted l).
Proof.
  intros m [|e l] nonempty; [congruence|]; clear nonempty; revert e.
  unfold shifted, sum; induction l as [|f l IH]; intro e; simpl in *.
  - pose proof (exp_pos (score e - m)); lra.
  - specialize (IH f); pose proof (exp_pos (score e - m)); lra.
Qed.

Lemma shifted_nonnegative : forall m l, 0 <= shifted m (unweighted l).
Proof.
  intros m [|e l].
  - unfold shifted, sum; simpl; lra.
  - apply Rlt_le, denominator_positive; discriminate.
Qed.

Lemma below_highest : forall l e, In e l -> score e <= highest l.
Proof.
  intros [|f l]; [intros e []|]; simpl; revert f.
  induction l as [|g l IH]; intros f e [<-|within]; simpl.
  - apply Rle_refl.
  - destruct within.
  - apply Rmax_l.
  - eapply Rle_trans; [|apply Rmax_r]; apply IH; exact within.
Qed.

Lemma highest_within : forall l, l <> [] -> exists e, In e l /\ score e = highest l.
Proof.
  intros [|f l] nonempty; [congruence|]; clear nonempty; simpl; revert f.
  induction l as [|g l IH]; intro f; simpl.
  - exists f; auto.
  - destruct (IH g) as (e & within & same).
    destruct (Rle_dec (score f) (gauges R element Rmax score g l)).
    + exists e; rewrite Rmax_right by assumption; simpl in within; tauto.
    + exists f; rewrite Rmax_left by lra; auto.
Qed.

Lemma at_least_one_term : forall m l e, In e l -> exp (score e - m) <= shifted m (unweighted l).
Proof.
  intros m l e; induction l as [|f l IH]; intros [].
  - subst f; pose proof (shifted_nonnegative m l).
    unfold shifted, sum in *; simpl in *; lra.
  - specialize (IH H); pose proof (exp_pos (score f - m)).
    unfold shifted, sum in *; simpl in *; lra.
Qed.

(* and at least 1 from the maximum, where no exponential exceeds 1: no overflow, no division by almost 0. *)
Theorem denominator_at_least_one : forall l, l <> [] -> 1 <= shifted (highest l) (unweighted l).
Proof.
  intros l nonempty; destruct (highest_within l nonempty) as (e & within & same).
  pose proof (at_least_one_term (highest l) l e within) as term.
  rewrite same, Rminus_diag_eq, exp_0 in term by reflexivity; exact term.
Qed.

Theorem exponential_at_most_one : forall l e, In e l -> exp (score e - highest l) <= 1.
Proof.
  intros l e within; rewrite <- exp_0; pose proof (below_highest l e within).
  destruct (Req_dec (score e - highest l) 0) as [->|]; [apply Rle_refl|].
  apply Rlt_le, exp_increasing; lra.
Qed.

(* From any gauge at all, the quotient of the two sums is attention: the gauge cancels. *)
Lemma sum_scaled : forall X (f : X -> R) c l, sum (map (fun x => f x * c) l) = sum (map f l) * c.
Proof.
  intros X f c; unfold sum; induction l as [|x l IH]; simpl; [ring|]; rewrite IH; ring.
Qed.

Lemma shifted_from : forall m n l, shifted n l = shifted m l * exp (m - n).
Proof.
  intros m n l; unfold shifted; rewrite <- sum_scaled; f_equal; apply map_ext; intro e.
  rewrite Rmult_assoc, exp_compose; reflexivity.
Qed.

Lemma denominator_is_shifted : forall l, denominator l = shifted 0 (unweighted l).
Proof.
  intro l; unfold denominator, shifted, unweighted; rewrite map_map; f_equal; apply map_ext; intro e; simpl.
  rewrite Rminus_0_r; ring.
Qed.

(* Deferred normalisation: one division of the sum instead of one of every term. *)
Theorem normalise_deferred : forall X (f : X -> R) c l, sum (map (fun x => f x / c) l) = sum (map f l) / c.
Proof. intros; unfold Rdiv; apply sum_scaled. Qed.

Lemma attention_is_quotient : forall l, attention l = shifted 0 l / denominator l.
Proof.
  intro l; unfold attention, softmax, shifted; rewrite <- normalise_deferred; f_equal; apply map_ext; intro e.
  rewrite Rminus_0_r; unfold Rdiv; ring.
Qed.

Theorem any_gauge : forall m l, l <> [] -> shifted m l / shifted m (unweighted l) = attention l.
Proof.
  intros m l nonempty; rewrite attention_is_quotient, denominator_is_shifted.
  rewrite (shifted_from 0 m l), (shifted_from 0 m (unweighted l)).
  pose proof (denominator_positive 0 l nonempty); pose proof (exp_pos (0 - m)).
  field; split; apply Rgt_not_eq; assumption.
Qed.

Lemma highest_unweighted : forall l, highest (unweighted l) = highest l.
Proof.
  intros [|e l]; [reflexivity|]; simpl; revert e.
  induction l as [|f l IH]; intro e; simpl; [|rewrite IH]; reflexivity.
Qed.

(* Streaming attention: both loops end with one maximum, the denominator is not 0, the quotient is the definition. *)
Theorem streaming_attention : forall l, l <> [] -> exists m a b,
  online l = Some (m, a) /\ online (unweighted l) = Some (m, b) /\ b <> 0 /\ a / b = attention l.
Proof.
  intros l nonempty; exists (highest l), (shifted (highest l) l), (shifted (highest l) (unweighted l)).
  assert (unweighted l <> []) by (destruct l; simpl; congruence).
  repeat split.
  - apply online_softmax; assumption.
  - rewrite online_softmax, highest_unweighted by assumption; reflexivity.
  - apply Rgt_not_eq, denominator_positive; assumption.
  - apply any_gauge; assumption.
Qed.

(* Masks. Every element says whether it is kept; what is asked for is attention over the kept ones. *)
Definition kept (l : list (bool * element)) : list element := map snd (filter fst l).
Definition unweighted_masked (l : list (bool * element)) : list (bool * element) :=
  map (fun p => (fst p, (score (snd p), 1))) l.
Definition masked (l : list (bool * element)) : row :=
  stream row merge None (map (fun p : bool * element => if fst p then inject (snd p) else None) l).

Theorem masked_online : forall l, masked l = online (kept l).
Proof.
  intro l; unfold masked, online, kept; rewrite !stream_reduce by
    (exact merge_assoc || apply combine_unit_left || apply combine_unit_right).
  rewrite map_map; apply (absent row merge None) with (kept := @fst bool element).
  apply combine_unit_left.
Qed.

Lemma kept_unweighted : forall l, kept (unweighted_masked l) = unweighted (kept l).
Proof.
  unfold kept, unweighted; induction l as [|[[|] e] l IH]; simpl; [|rewrite IH|exact IH]; reflexivity.
Qed.

(* A row that keeps a key has its attention over the kept keys. *)
Theorem masked_attention : forall l, (exists e, In (true, e) l) -> exists m a b,
  masked l = Some (m, a) /\ masked (unweighted_masked l) = Some (m, b) /\ b <> 0 /\ a / b = attention (kept l).
Proof.
  intros l (e & within); rewrite !masked_online, kept_unweighted; apply streaming_attention.
  intro empty; assert (found : In e (kept l)) by (apply (in_map snd _ (true, e)), filter_In; auto).
  rewrite empty in found; exact found.
Qed.

(* A row that keeps none has no state: its result is a convention, made outside the loop. *)
Theorem fully_masked : forall l, (forall p, In p l -> fst p = false) -> masked l = None.
Proof.
  intros l none; rewrite masked_online; unfold kept.
  induction l as [|p l IH]; simpl; [reflexivity|].
  rewrite none by (left; reflexivity); apply IH; intros q within; apply none; right; exact within.
Qed.

(* Finished parts of a row, (attention, log-sum-exp), merge like states do: split-KV, paged caches, many processors.

   lse l = ln Σ e^s is the gauge that makes the denominator 1. Axioms: those of Rocq's reals. *)

From Coq Require Import Reals List Lra.
From Onepass Require Import Monoid Cascade Softmax.
Import ListNotations.
Open Scope R_scope.

Definition lse (l : list element) : R := ln (denominator l).

Lemma denominator_is_positive : forall l, l <> [] -> 0 < denominator l.
Proof. intros; rewrite denominator_is_shifted; apply denominator_positive; assumption. Qed.

Lemma exp_lse : forall l, l <> [] -> exp (lse l) = denominator l.
Proof. intros; apply exp_ln, denominator_is_positive; assumption. Qed.

(* It is read from a state with any gauge m: lse = m + ln Σ e^(s-m). *)
Theorem lse_of_state : forall m l, l <> [] -> lse l = m + ln (shifted m (unweighted l)).
Proof.
  intros m l nonempty; unfold lse; rewrite denominator_is_shifted, (shifted_from m 0).
  rewrite ln_mult, ln_exp by (exact (exp_pos _) || apply denominator_positive; assumption); ring.
Qed.

Lemma sum_app : forall l k, sum (l ++ k) = sum l + sum k.
Proof. apply split; intros; ring. Qed.

Lemma denominator_app : forall l k, denominator (l ++ k) = denominator l + denominator k.
Proof. intros; unfold denominator; rewrite map_app; apply sum_app. Qed.

Lemma shifted_app : forall m l k, shifted m (l ++ k) = shifted m l + shifted m k.
Proof. intros; unfold shifted; rewrite map_app; apply sum_app. Qed.

Lemma attention_numerator : forall l, l <> [] -> shifted 0 l = attention l * denominator l.
Proof.
  intros l nonempty; rewrite attention_is_quotient; field.
  apply Rgt_not_eq, denominator_is_positive, nonempty.
Qed.

(* lse (l ++ k) = m + ln (e^(lse l - m) + e^(lse k - m)) for any m; the larger of the two keeps it from overflowing. *)
Theorem lse_merge : forall m l k, l <> [] -> k <> [] ->
  lse (l ++ k) = m + ln (exp (lse l - m) + exp (lse k - m)).
Proof.
  intros m l k some more; unfold Rminus; rewrite !exp_plus, !exp_lse by assumption.
  rewrite <- Rmult_plus_distr_r, <- denominator_app, ln_mult, ln_exp; unfold lse.
  - ring.
  - rewrite denominator_app; pose proof (denominator_is_positive l some).
    pose proof (denominator_is_positive k more); lra.
  - apply exp_pos.
Qed.

(* The outputs merge with weights e^(lse part - lse whole), which sum to 1. *)
Theorem attention_merge : forall l k, l <> [] -> k <> [] ->
  attention (l ++ k) = attention l * exp (lse l - lse (l ++ k)) + attention k * exp (lse k - lse (l ++ k)).
Proof.
  intros l k some more; assert (l ++ k <> []) by (destruct l; [congruence|discriminate]).
  unfold Rminus; rewrite !exp_plus, exp_Ropp, !exp_lse by assumption.
  rewrite (attention_is_quotient (l ++ k)), shifted_app, !attention_numerator by assumption.
  unfold Rdiv; ring.
Qed.

Theorem merge_weights : forall l k, l <> [] -> k <> [] ->
  exp (lse l - lse (l ++ k)) + exp (lse k - lse (l ++ k)) = 1.
Proof.
  intros l k some more; assert (whole : l ++ k <> []) by (destruct l; [congruence|discriminate]).
  unfold Rminus; rewrite !exp_plus, exp_Ropp, !exp_lse by assumption.
  pose proof (denominator_is_positive _ whole); rewrite <- Rmult_plus_distr_r, <- denominator_app.
  field; lra.
Qed.

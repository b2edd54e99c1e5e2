(* Positions of extrema: a number's place in an order and a position, as one integer.

   A maximum of integers is a reduction as any other (Monoid.v), so whatever order a loop takes, the largest pair gives
   the first position of the largest number. Integers stand for places of numbers; no axiom is used. *)

From Coq Require Import ZArith Lia.
Open Scope Z_scope.

Section Positions.
  Variable n : Z. (* more than there are positions *)

  Definition pair (place position : Z) : Z := place * n - position.

  (* Pairs are in the order of their numbers; of equal numbers the first position has the largest pair. *)
  Theorem pair_order : forall a b i j, 0 <= i < n -> 0 <= j < n ->
    (pair a i <= pair b j <-> a < b \/ (a = b /\ j <= i)).
  Proof.
    unfold pair; intros a b i j Hi Hj; split.
    - intro H; destruct (Z.lt_trichotomy a b) as [Hab | [Hab | Hab]]; [left; lia | right; lia | exfalso; nia].
    - intros [Hab | [Hab Hji]]; [nia | subst; lia].
  Qed.

  (* The position is what is left of the negated pair. *)
  Theorem pair_position : forall a i, 0 <= i < n -> (- pair a i) mod n = i.
  Proof.
    unfold pair; intros a i Hi; replace (- (a * n - i)) with (i + (- a) * n) by ring.
    rewrite Z_mod_plus_full; apply Z.mod_small; exact Hi.
  Qed.

  (* The largest pair of the positions 0 .. count. *)
  Fixpoint largest (place : nat -> Z) (count : nat) : Z :=
    match count with
    | O => pair (place O) 0
    | S before => Z.max (largest place before) (pair (place count) (Z.of_nat count))
    end.

  Lemma largest_is_one : forall place count,
    exists k, (k <= count)%nat /\ largest place count = pair (place k) (Z.of_nat k).
  Proof.
    intros place count; induction count as [|count [k [Hk IH]]]; cbn [largest].
    - exists O; split; [lia | reflexivity].
    - destruct (Z.max_spec (largest place count) (pair (place (S count)) (Z.of_nat (S count)))) as [[_ E] | [_ E]].
      + exists (S count); split; [lia | exact E].
      + exists k; split; [lia | rewrite E; exact IH].
  Qed.

  Lemma largest_is_largest : forall place count j,
    (j <= count)%nat -> pair (place j) (Z.of_nat j) <= largest place count.
  Proof.
    intros place count; induction count as [|count IH]; intros j Hj; cbn [largest].
    - replace j with O by lia; simpl; lia.
    - destruct (Nat.eq_dec j (S count)) as [-> | Hne]; [lia |].
      apply Z.le_trans with (largest place count); [apply IH; lia | lia].
  Qed.

  (* It gives the first position of the largest number. *)
  Theorem first_of_largest : forall place count, Z.of_nat count < n ->
    exists k, (k <= count)%nat /\ (- largest place count) mod n = Z.of_nat k /\
      forall j, (j <= count)%nat -> place j < place k \/ (place j = place k /\ (k <= j)%nat).
  Proof.
    intros place count Hn; destruct (largest_is_one place count) as [k [Hk E]]; exists k.
    split; [exact Hk | split].
    - rewrite E; apply pair_position; lia.
    - intros j Hj; pose proof (largest_is_largest place count j Hj) as H; rewrite E in H.
      apply pair_order in H; lia.
  Qed.

  (* Of a tile: the largest number, and the first position among those that equal it, are the largest pair. *)
  Theorem pair_of_tile : forall place count k, Z.of_nat count < n -> (k <= count)%nat ->
    (forall j, (j <= count)%nat -> place j < place k \/ (place j = place k /\ (k <= j)%nat)) ->
    largest place count = pair (place k) (Z.of_nat k).
  Proof.
    intros place count k Hn Hk H; apply Z.le_antisymm; [| apply largest_is_largest; exact Hk].
    destruct (largest_is_one place count) as [j [Hj ->]]; apply pair_order; [lia | lia |].
    destruct (H j Hj); lia.
  Qed.
End Positions.

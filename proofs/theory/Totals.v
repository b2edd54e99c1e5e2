(* Sums and maxima of real numbers and absent scores, to which reductions of values come down. *)

From Coq Require Import Reals ZArith Lra List Lia Morphisms Setoid.
From Onepass Require Import Monoid Homomorphism Cascade Softmax Values Folds.
Import ListNotations.
Open Scope R_scope.

Lemma over_alike : forall A (op : A -> A -> A) unit size f g,
  (forall j, (j < size)%nat -> f j = g j) -> over op unit size f = over op unit size g.
Proof.
  intros A op unit size f g same; unfold over; f_equal; apply map_ext_in.
  intros j within; apply in_seq in within; apply same; lia.
Qed.

(* A map that respects the operations leaves a reduction: Homomorphism.promote over a range. *)
Lemma over_promoted : forall A B (op : A -> A -> A) unit (op' : B -> B -> B) unit' (phi : A -> B),
  phi unit = unit' -> (forall x y, phi (op x y) = op' (phi x) (phi y)) ->
  forall size f, over op' unit' size (fun j => phi (f j)) = phi (over op unit size f).
Proof.
  intros A B op unit op' unit' phi of_unit of_op size f; unfold over.
  rewrite (promote A B op unit op' unit' phi of_unit of_op), map_map; reflexivity.
Qed.

Lemma over_exchanged : forall A (op : A -> A -> A) unit,
  (forall x y z, op x (op y z) = op (op x y) z) -> (forall x, op unit x = x) -> (forall x y, op x y = op y x) ->
  forall rows columns f,
  over op unit rows (fun i => over op unit columns (f i)) = over op unit columns (fun j => over op unit rows (fun i => f i j)).
Proof. intros A op unit assoc unit_left comm rows columns f; apply fubini; assumption. Qed.

(* A range is cut at a place: Monoid.split. *)
Lemma range_from : forall size start, seq start size = map (Nat.add start) (seq 0 size).
Proof.
  induction size as [|n IH]; intro start; simpl; [reflexivity|].
  rewrite Nat.add_0_r, (IH (S start)), (IH 1%nat), map_map; f_equal; apply map_ext; intro; lia.
Qed.

Lemma over_cut : forall A (op : A -> A -> A) unit,
  (forall x y z, op x (op y z) = op (op x y) z) -> (forall x, op unit x = x) ->
  forall before behind f,
  over op unit (before + behind) f = op (over op unit before f) (over op unit behind (fun j => f (before + j)%nat)).
Proof.
  intros A op unit assoc unit_left before behind f; unfold over.
  rewrite seq_app, map_app, split by assumption; simpl; rewrite (range_from behind before), map_map; reflexivity.
Qed.

(* A range in blocks of one length: Monoid.tile. *)
Lemma range_in_blocks : forall blocks length,
  seq 0 (blocks * length) = concat (map (fun b => map (Nat.add (b * length)) (seq 0 length)) (seq 0 blocks)).
Proof.
  intros blocks length; induction blocks as [|n IH]; [reflexivity|].
  rewrite seq_S, map_app, concat_app, <- IH; simpl; rewrite app_nil_r, <- range_from, Nat.add_comm, seq_app; reflexivity.
Qed.

Lemma over_in_blocks : forall A (op : A -> A -> A) unit,
  (forall x y z, op x (op y z) = op (op x y) z) -> (forall x, op unit x = x) ->
  forall blocks length f,
  over op unit (blocks * length) f =
  over op unit blocks (fun b => over op unit length (fun i => f (b * length + i)%nat)).
Proof.
  intros A op unit assoc unit_left blocks length f; unfold over.
  rewrite range_in_blocks, concat_map, tile, !map_map by assumption.
  f_equal; apply map_ext; intro b; rewrite map_map; reflexivity.
Qed.

(* Of several parts one has an element, and in the others it is absent. *)
Lemma over_the_part : forall A (op : A -> A -> A) unit,
  (forall x y z, op x (op y z) = op (op x y) z) -> (forall x, op unit x = x) -> (forall x y, op x y = op y x) ->
  forall size k x, (0 <= k)%Z ->
  over op unit size (fun p => if Z.eqb k (Z.of_nat p) then x else unit) = if Z.ltb k (Z.of_nat size) then x else unit.
Proof.
  intros A op unit assoc unit_left comm size k x positive; induction size as [|n IH].
  - destruct (Z.ltb_spec k (Z.of_nat 0)); [lia | reflexivity].
  - replace (S n) with (n + 1)%nat by lia; rewrite over_cut, IH by assumption; unfold over; simpl.
    rewrite Nat.add_0_r, (comm _ unit), unit_left.
    destruct (Z.ltb_spec k (Z.of_nat n)), (Z.ltb_spec k (Z.of_nat (n + 1))), (Z.eqb_spec k (Z.of_nat n)); try lia;
      rewrite ?unit_left; try reflexivity; rewrite comm; apply unit_left.
Qed.

(* A range in parts, each element in one of them: Monoid.fubini, Monoid.partition. *)
Lemma over_in_parts : forall A (op : A -> A -> A) unit,
  (forall x y z, op x (op y z) = op (op x y) z) -> (forall x, op unit x = x) -> (forall x y, op x y = op y x) ->
  forall parts size c f, (0 < parts)%nat ->
  over op unit size f =
  over op unit parts (fun p => over op unit size (fun j =>
    if Z.eqb (Z.modulo (c j) (Z.of_nat parts)) (Z.of_nat p) then f j else unit)).
Proof.
  intros A op unit assoc unit_left comm parts size c f some.
  rewrite over_exchanged by assumption; apply over_alike; intros j _.
  pose proof (Z.mod_pos_bound (c j) (Z.of_nat parts)).
  rewrite (over_the_part _ op unit) by (assumption || lia).
  destruct (Z.ltb_spec (Z.modulo (c j) (Z.of_nat parts)) (Z.of_nat parts)); [reflexivity | lia].
Qed.

(* Sums of reals. *)
Definition total := over Rplus 0.

#[global] Instance total_proper : Proper (eq ==> pointwise_relation nat eq ==> eq) total.
Proof. intros n ? <- f g same; apply over_alike; intros; apply same. Qed.

Lemma sum_of_reals : forall size f g, (forall j, f j = Number (g j)) -> sum_over size f = Number (total size g).
Proof.
  intros size f g same; unfold sum_over, total.
  rewrite <- (over_promoted _ _ Rplus 0 plus (Number 0) Number) by reflexivity.
  apply over_alike; intros; apply same.
Qed.

Lemma total_scaled : forall size f c, total size f * c = total size (fun j => f j * c).
Proof. intros; symmetry; apply (over_promoted _ _ Rplus 0 Rplus 0 (fun x => x * c)); intros; ring. Qed.

Lemma total_scaled_left : forall size f c, c * total size f = total size (fun j => c * f j).
Proof. intros; symmetry; apply (over_promoted _ _ Rplus 0 Rplus 0 (fun x => c * x)); intros; ring. Qed.

Lemma total_negated : forall size f, - total size f = total size (fun j => - f j).
Proof. intros; symmetry; apply (over_promoted _ _ Rplus 0 Rplus 0 Ropp); intros; ring. Qed.

Lemma total_added : forall size f g, total size f + total size g = total size (fun j => f j + g j).
Proof. intros; symmetry; apply pointwise; intros; ring. Qed.

Lemma total_exchanged : forall rows columns f,
  total rows (fun i => total columns (f i)) = total columns (fun j => total rows (fun i => f i j)).
Proof. intros; apply over_exchanged; intros; ring. Qed.

Lemma total_alike : forall size f g, (forall j, (j < size)%nat -> f j = g j) -> total size f = total size g.
Proof. intros; apply over_alike; assumption. Qed.

Lemma total_not_negative : forall size f, (forall j, 0 <= f j) -> 0 <= total size f.
Proof.
  intros size f each; unfold total, over; induction (seq 0 size) as [|j l IH].
  - apply Rle_refl.
  - rewrite reduce_cons; specialize (each j); lra.
Qed.

(* A sum of numbers that are not negative is such a number. *)
Lemma sum_not_negative : forall size f, (forall j, exists x, f j = Number x /\ 0 <= x) ->
  exists whole, sum_over size f = Number whole /\ 0 <= whole.
Proof.
  intros size f each; unfold sum_over, over; induction (seq 0 size) as [|j l (rest & same & sign)].
  - exists 0; split; [reflexivity | apply Rle_refl].
  - destruct (each j) as (x & here & known).
    exists (x + rest); rewrite reduce_cons, same, here; split; [reflexivity | lra].
Qed.

Lemma total_positive : forall size f, (0 < size)%nat -> (forall j, 0 < f j) -> 0 < total size f.
Proof.
  intros size f some each; unfold total, over; destruct (range_has_an_element size some) as (i & l & ->).
  rewrite reduce_cons; specialize (each i) as first; enough (0 <= reduce R Rplus 0 (map f l)) by lra.
  induction l as [|j l IH]; [apply Rle_refl|]; rewrite reduce_cons; specialize (each j); lra.
Qed.

(* A sum over a range that is not empty is undefined if all its elements are. *)
Lemma sum_of_undefined : forall size f, (0 < size)%nat -> (forall j, (j < size)%nat -> f j = Undefined) ->
  sum_over size f = Undefined.
Proof.
  intros size f some each; unfold sum_over; rewrite (over_alike _ _ _ _ f (fun _ => Undefined) each).
  unfold over; destruct (range_has_an_element size some) as (i & l & ->); reflexivity.
Qed.

(* The largest of scores, of which some or all may be absent. *)
Definition join (s t : option R) : option R :=
  match s, t with Some x, Some y => Some (Rmax x y) | None, _ => t | _, None => s end.
Definition top := over join None.

Lemma highest_of_scores : forall size s, highest_over size (fun j => score (s j)) = score (top size s).
Proof.
  intros; apply (over_promoted _ _ join None larger Below score); [reflexivity|].
  intros [x|] [y|]; reflexivity.
Qed.

Lemma top_absent : forall size s, top size s = None -> forall j, (j < size)%nat -> s j = None.
Proof.
  intros size s; unfold top, over; intros none j within; assert (In j (seq 0 size)) as listed by (apply in_seq; lia).
  clear within; induction (seq 0 size) as [|i l IH]; [destruct listed|]; rewrite reduce_cons in none.
  destruct listed as [<-|listed]; destruct (s i) eqn:own, (reduce _ join None (map s l)); try discriminate; auto.
Qed.

Lemma top_above : forall size s m, top size s = Some m -> forall j, (j < size)%nat ->
  match s j with Some x => x <= m | None => True end.
Proof.
  intros size s m; unfold top, over; intros some j within; assert (In j (seq 0 size)) as listed by (apply in_seq; lia).
  clear within; revert m some; induction (seq 0 size) as [|i l IH]; intros m some; [destruct listed|].
  rewrite reduce_cons in some; destruct (reduce _ join None (map s l)) as [y|] eqn:rest.
  - destruct (s i) as [x|] eqn:own; simpl in some; injection some as <-.
    + destruct listed as [<-|listed]; [rewrite own; apply Rmax_l|].
      specialize (IH listed y eq_refl); destruct (s j); [|trivial]; eapply Rle_trans; [exact IH|apply Rmax_r].
    + destruct listed as [<-|listed]; [rewrite own; trivial|apply IH; auto].
  - destruct listed as [<-|listed].
    + destruct (s i) as [x|]; [|trivial]; simpl in some; injection some as <-; apply Rle_refl.
    + enough (s j = None) as -> by trivial; clear - rest listed; revert rest.
      induction l as [|k l IH]; [destruct listed|]; rewrite reduce_cons; intro rest.
      destruct listed as [<-|listed]; destruct (s k), (reduce _ join None (map s l)); try discriminate; auto.
Qed.

(* The largest of real scores, over a range that is not empty. *)
Definition highest (size : nat) (s : nat -> R) : R :=
  match top size (fun j => Some (s j)) with Some m => m | None => 0 end.

Lemma top_of_reals : forall size s, (0 < size)%nat -> top size (fun j => Some (s j)) = Some (highest size s).
Proof.
  intros size s some; unfold highest; destruct (top size _) eqn:found; [reflexivity|].
  discriminate (top_absent _ _ found 0%nat some).
Qed.

Lemma highest_of_reals : forall size s, (0 < size)%nat ->
  highest_over size (fun j => Number (s j)) = Number (highest size s).
Proof.
  intros size s some; change (highest_over size (fun j => score ((fun j => Some (s j)) j)) = Number (highest size s)).
  rewrite highest_of_scores, top_of_reals by assumption; reflexivity.
Qed.

Lemma logarithm_of_positive : forall x, 0 < x -> logarithm (Number x) = Number (ln x).
Proof. intros x positive; unfold logarithm; destruct (total_order_T 0 x) as [[|]|]; [reflexivity | |]; exfalso; lra. Qed.

Lemma ln_positive : forall x, 1 < x -> 0 < ln x.
Proof. intros; rewrite <- ln_1; apply ln_increasing; lra. Qed.

(* A positive factor leaves a maximum of any values. *)
Lemma highest_scaled : forall c, 0 < c -> forall size f,
  highest_over size (fun j => times (f j) (Number c)) = times (highest_over size f) (Number c).
Proof.
  intros c positive; apply (over_promoted _ _ larger Below larger Below (fun x => times x (Number c))).
  - unfold times, signed; destruct (total_order_T 0 c) as [[|]|]; try reflexivity; exfalso; lra.
  - intros [x| | |] [y| | |]; unfold times, larger, signed;
      try (destruct (total_order_T 0 c) as [[|]|]; try reflexivity; exfalso; lra); try reflexivity.
    rewrite <- !(Rmult_comm c), RmaxRmult by lra; reflexivity.
Qed.

(* States of real scores and weights, absent scores among them. *)
Definition seen (m : R) (s : option R) (w : R) : R := match s with Some x => w * exp (x - m) | None => 0 end.

Lemma seen_moved : forall m n s w, seen m s w * exp (m - n) = seen n s w.
Proof.
  intros m n [x|] w; simpl; [|ring]; rewrite Rmult_assoc, <- exp_plus; f_equal; f_equal; ring.
Qed.

(* One pass: the state of a range has its largest score, and the sum of weights seen from there. *)
Theorem merged_of_scores : forall size s w,
  merged_over size (fun j => scaled (score (s j)) (Number (w j)))
  = match top size s with
    | Some m => Some (Number m, Number (total size (fun j => seen m (s j) (w j))))
    | None => None
    end.
Proof.
  intros size s w; unfold merged_over, top, total, over; generalize (seq 0 size); intro l.
  induction l as [|i l IH]; [reflexivity|]; rewrite 2!reduce_cons, IH; clear IH.
  assert (moved : forall m n, reduce R Rplus 0 (map (fun j => seen m (s j) (w j)) l) * exp (m - n)
    = reduce R Rplus 0 (map (fun j => seen n (s j) (w j)) l)).
  { intros m n; clear; induction l as [|j l IH]; [apply Rmult_0_l|].
    rewrite !reduce_cons, <- IH, <- (seen_moved m n); ring. }
  destruct (s i) as [x|] eqn:own; cbn [score].
  - replace (scaled (Number x) (Number (w i))) with (Some (Number x, Number (w i))) by
      (unfold scaled, rescaled; simpl; rewrite Rplus_opp_r, exp_0, Rmult_1_r; reflexivity).
    destruct (reduce _ join None (map s l)) as [y|] eqn:rest; cbn [join].
    + rewrite reduce_cons, own, <- (moved y (Rmax x y)); reflexivity.
    + rewrite reduce_cons, own; unfold seen at 1; rewrite Rminus_diag_eq, exp_0, Rmult_1_r by reflexivity.
      cbn; do 3 f_equal; enough (reduce R Rplus 0 (map (fun j => seen x (s j) (w j)) l) = 0) as -> by ring.
      revert rest; clear; induction l as [|j l IH]; [reflexivity|]; rewrite reduce_cons; intro rest.
      rewrite reduce_cons; destruct (s j), (reduce _ join None (map s l)); try discriminate.
      rewrite IH by reflexivity; apply Rplus_0_l.
  - destruct (reduce _ join None (map s l)) as [y|] eqn:rest; cbn [join]; [|reflexivity].
    rewrite reduce_cons, own; unfold seen at 2; rewrite Rplus_0_l; reflexivity.
Qed.

Lemma merged_of_reals : forall size s w, (0 < size)%nat ->
  merged_over size (fun j => scaled (Number (s j)) (Number (w j)))
  = Some (Number (highest size s), Number (total size (fun j => w j * exp (s j - highest size s)))).
Proof.
  intros size s w some.
  change (merged_over size (fun j => scaled (score ((fun j => Some (s j)) j)) (Number (w j)))
    = Some (Number (highest size s), Number (total size (fun j => seen (highest size s) (Some (s j)) (w j))))).
  rewrite merged_of_scores, top_of_reals by assumption; reflexivity.
Qed.

(* Two passes: the sum of weights seen from a real, and from the maximum of absent scores, where it is undefined. *)
Lemma weighted_sum_seen : forall size s w m,
  sum_over size (fun j => times (exponential (minus (score (s j)) (Number m))) (Number (w j)))
  = Number (total size (fun j => seen m (s j) (w j))).
Proof.
  intros; apply sum_of_reals; intro j; destruct (s j) as [x|]; unfold minus, times, seen; cbn; f_equal; [|ring].
  rewrite Rmult_comm; reflexivity.
Qed.

Lemma sum_seen : forall size s m,
  sum_over size (fun j => exponential (minus (score (s j)) (Number m)))
  = Number (total size (fun j => seen m (s j) 1)).
Proof.
  intros; apply sum_of_reals; intro j; destruct (s j) as [x|]; unfold minus, seen; cbn; f_equal.
  rewrite Rmult_1_l; reflexivity.
Qed.

(* Reductions of states of reals are those of Softmax: a commutative monoid. *)
Lemma merged_of_states : forall size f g, (forall j, f j = held (g j)) ->
  merged_over size f = held (over (combine R R Rmax Rplus Softmax.rescale) None size g).
Proof.
  intros size f g same; unfold merged_over.
  rewrite <- (over_promoted _ _ (combine R R Rmax Rplus Softmax.rescale) None merge None held).
  - apply over_alike; intros; apply same.
  - reflexivity.
  - intros [[m a]|] [[n b]|]; reflexivity.
Qed.

Lemma states_exchanged : forall rows columns s,
  merged_over rows (fun i => merged_over columns (fun j => held (s i j)))
  = merged_over columns (fun j => merged_over rows (fun i => held (s i j))).
Proof.
  intros; rewrite !(merged_of_states _ _ (fun i => over _ None _ _)) by
    (intro; apply merged_of_states; reflexivity).
  f_equal; apply over_exchanged; [exact merge_assoc | reflexivity | exact merge_comm].
Qed.

Lemma states_in_blocks : forall blocks length s,
  merged_over (blocks * length) (fun j => held (s j)) =
  merged_over blocks (fun b => merged_over length (fun i => held (s (b * length + i)%nat))).
Proof.
  intros; rewrite (merged_of_states (blocks * length) _ s) by reflexivity.
  rewrite (merged_of_states blocks _ (fun b => over _ None length (fun i => s (b * length + i)%nat))) by
    (intro; apply merged_of_states; reflexivity).
  f_equal; apply over_in_blocks; [exact merge_assoc | reflexivity].
Qed.

Lemma states_in_parts : forall parts size c s, (0 < parts)%nat ->
  merged_over size (fun j => held (s j)) =
  merged_over parts (fun p => merged_over size (fun j =>
    present_where (Z.eqb (Z.modulo (c j) (Z.of_nat parts)) (Z.of_nat p)) (held (s j)))).
Proof.
  intros parts size c s some; rewrite (merged_of_states size _ s) by reflexivity.
  rewrite (merged_of_states parts _ (fun p => over (combine R R Rmax Rplus Softmax.rescale) None size (fun j =>
    if Z.eqb (Z.modulo (c j) (Z.of_nat parts)) (Z.of_nat p) then s j else None))).
  - f_equal; apply over_in_parts; [exact merge_assoc | reflexivity | exact merge_comm | assumption].
  - intro p; apply merged_of_states; intro j; unfold present_where; destruct (Z.eqb _ _); reflexivity.
Qed.

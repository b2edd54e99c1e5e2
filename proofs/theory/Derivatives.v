(* Derivatives of operations by one real operand, where the others are fixed and the operation is defined. *)

From Coq Require Import Reals Lra Lia ZArith Bool FunctionalExtensionality.
From Onepass Require Import Monoid Values Folds Totals Tactics.
Open Scope R_scope.

Definition real (a : value) : R := match a with Number x => x | _ => 0 end.

(* A function that is f around x has the derivative of f. *)
Lemma near : forall f F x l e, 0 < e -> (forall z, x - e < z < x + e -> f z = F z) ->
  derivable_pt_lim f x l -> derivable_pt_lim F x l.
Proof.
  intros f F x l e positive same; apply (derivable_pt_lim_locally_ext f F x (x - e) (x + e)); [lra | exact same].
Qed.

Ltac around f e :=
  apply (near f _ _ _ e); [lra | intros; meanings; cbn [real]; decisions; cbn [real]; try (exfalso; lra) | ].

Lemma of_exponential : forall x, derivable_pt_lim (fun x => real (exponential (Number x))) x (exp x).
Proof. exact derivable_pt_lim_exp. Qed.

Lemma of_logarithm : forall x, 0 < x -> derivable_pt_lim (fun x => real (logarithm (Number x))) x (/ x).
Proof. intros x positive; around ln x; [reflexivity | apply derivable_pt_lim_ln; assumption]. Qed.

Lemma times_constant : forall f a x l,
  derivable_pt_lim f x l -> derivable_pt_lim (fun z => f z * a) x (l * a).
Proof.
  intros f a x l slope.
  pose proof (derivable_pt_lim_mult f (fct_cte a) x l 0 slope (derivable_pt_lim_const a x)) as found.
  replace (l * fct_cte a x + f x * 0) with (l * a) in found by (unfold fct_cte; ring); exact found.
Qed.

Lemma of_power_of_two : forall x,
  derivable_pt_lim (fun x => real (power_of_two (Number x))) x (exp (x * ln 2) * ln 2).
Proof.
  intro x; replace (exp (x * ln 2) * ln 2) with (exp (x * ln 2) * (1 * ln 2)) by ring.
  apply (derivable_pt_lim_comp (fun z => z * ln 2) exp); [|apply derivable_pt_lim_exp].
  apply (times_constant id), derivable_pt_lim_id.
Qed.

Lemma of_binary_logarithm : forall x, 0 < x ->
  derivable_pt_lim (fun x => real (binary_logarithm (Number x))) x (/ x * / ln 2).
Proof.
  intros x positive; pose proof ln_lt_2; around (fun z => ln z * / ln 2) x; [reflexivity|].
  apply times_constant, derivable_pt_lim_ln, positive.
Qed.

Lemma of_logarithm_after_one : forall x, 0 < 1 + x ->
  derivable_pt_lim (fun x => real (logarithm_after_one (Number x))) x (/ (1 + x)).
Proof.
  intros x positive; around (comp ln (fun z => 1 + z)) (1 + x); [reflexivity|].
  replace (/ (1 + x)) with (/ (1 + x) * (0 + 1)) by ring.
  apply derivable_pt_lim_comp; [|apply derivable_pt_lim_ln; assumption].
  exact (derivable_pt_lim_plus (fct_cte 1) id x 0 1 (derivable_pt_lim_const 1 x) (derivable_pt_lim_id x)).
Qed.

Lemma of_root : forall x, 0 < x -> derivable_pt_lim (fun x => real (root (Number x))) x (/ (2 * sqrt x)).
Proof. intros x positive; around sqrt x; [reflexivity | apply derivable_pt_lim_sqrt; assumption]. Qed.

Lemma of_sine : forall x, derivable_pt_lim (fun x => real (sine (Number x))) x (cos x).
Proof. exact derivable_pt_lim_sin. Qed.

Lemma of_cosine : forall x, derivable_pt_lim (fun x => real (cosine (Number x))) x (- sin x).
Proof. exact derivable_pt_lim_cos. Qed.

Lemma cosh_positive : forall x, 0 < cosh x.
Proof. intro x; unfold cosh; pose proof (exp_pos x); pose proof (exp_pos (- x)); lra. Qed.

Lemma of_hyperbolic_tangent : forall x,
  derivable_pt_lim (fun x => real (hyperbolic_tangent (Number x))) x (1 - tanh x * tanh x).
Proof.
  intro x; pose proof (cosh_positive x).
  replace (1 - tanh x * tanh x) with ((cosh x * cosh x - sinh x * sinh x) / Rsqr (cosh x)) by
    (unfold tanh, Rsqr; field; lra).
  apply (derivable_pt_lim_div sinh cosh); [apply derivable_pt_lim_sinh | apply derivable_pt_lim_cosh | lra].
Qed.

Lemma linear : forall a b x, derivable_pt_lim (fun x => a * x + b) x a.
Proof.
  intros a b x; enough (derivable_pt_lim (fun x => a * x + b) x (a * 1 + 0)) as found by
    (replace (a * 1 + 0) with a in found by ring; exact found).
  apply (derivable_pt_lim_plus (mult_real_fct a id) (fct_cte b)); [|apply derivable_pt_lim_const].
  apply derivable_pt_lim_scal, derivable_pt_lim_id.
Qed.

Lemma inverse : forall a x, x <> 0 -> derivable_pt_lim (fun x => a / x) x (- (a / (x * x))).
Proof.
  intros a x some; replace (- (a / (x * x))) with ((0 * x - 1 * a) / Rsqr x) by (unfold Rsqr; field; assumption).
  apply (derivable_pt_lim_div (fct_cte a) id x 0 1);
    [apply derivable_pt_lim_const | apply derivable_pt_lim_id | exact some].
Qed.

Lemma of_division : forall c x, x <> 0 ->
  derivable_pt_lim (fun x => real (divide (Number c) (Number x))) x (- (c / (x * x))).
Proof.
  intros c x some; apply (near (fun z => c / z) _ _ _ (Rabs x)); [apply Rabs_pos_lt, some | | apply inverse, some].
  intros z within; unfold divide; destruct (Req_EM_T z 0) as [->|]; [|reflexivity].
  exfalso; unfold Rabs in within; destruct (Rcase_abs x); lra.
Qed.

Lemma of_reciprocal_root : forall x, 0 < x ->
  derivable_pt_lim (fun x => real (reciprocal_root (Number x))) x (- (1 / (sqrt x * sqrt x)) * / (2 * sqrt x)).
Proof.
  intros x positive; pose proof (sqrt_lt_R0 x positive).
  apply (near (comp (fun z => 1 / z) sqrt) _ _ _ x positive).
  - intros z within; pose proof (sqrt_lt_R0 z ltac:(lra)).
    unfold reciprocal_root, root, divide; decisions; try (exfalso; lra); reflexivity.
  - apply derivable_pt_lim_comp; [apply derivable_pt_lim_sqrt, positive | apply inverse; lra].
Qed.

Lemma of_sigmoid : forall x, derivable_pt_lim (fun x => real (sigmoid (Number x))) x
  (- (1 / ((1 + exp (- x)) * (1 + exp (- x)))) * (- exp (- x))).
Proof.
  intro x; pose proof (exp_pos (- x)); apply (near (comp (fun z => 1 / z) (fun z => 1 + exp (- z))) _ _ _ 1); [lra | |].
  - intros z _; pose proof (exp_pos (- z)); unfold sigmoid, divide, plus, exponential, negate; decisions;
      [exfalso; lra | reflexivity].
  - apply derivable_pt_lim_comp; [|apply inverse; lra].
    replace (- exp (- x)) with (0 + exp (- x) * - 1) by ring.
    apply (derivable_pt_lim_plus (fct_cte 1) (comp exp (opp_fct id))); [apply derivable_pt_lim_const|].
    apply derivable_pt_lim_comp; [|apply derivable_pt_lim_exp].
    apply derivable_pt_lim_opp, derivable_pt_lim_id.
Qed.

(* A cast that changes nothing is left out. *)
Lemma left_out : forall cast, changes_nothing cast -> cast = (fun a => a).
Proof. intros cast same; apply functional_extensionality; exact same. Qed.

(* Where a function turns, it has no derivative. *)
Lemma corner : forall f x a b d, a <> b ->
  (forall h, 0 < h -> f (x + h) - f x = a * h) -> (forall h, h < 0 -> f (x + h) - f x = b * h) ->
  ~ derivable_pt_lim f x d.
Proof.
  intros f x a b d turns right left slope.
  destruct (slope (Rabs (a - b) / 2)) as [[delta positive] close].
  - pose proof (Rabs_pos_lt (a - b) ltac:(lra)); lra.
  - simpl in close; pose proof (close (delta / 2) ltac:(lra)) as up.
    pose proof (close (- (delta / 2)) ltac:(lra)) as down.
    rewrite right in up by lra; rewrite left in down by lra.
    replace (a * (delta / 2) / (delta / 2)) with a in up by (field; lra).
    replace (b * - (delta / 2) / - (delta / 2)) with b in down by (field; lra).
    rewrite Rabs_Ropp in down; rewrite (Rabs_right (delta / 2)) in * by lra.
    specialize (up ltac:(lra)); specialize (down ltac:(lra)).
    unfold Rabs in *; decisions; lra.
Qed.

Lemma of_error_function : forall x,
  derivable_pt_lim (fun x => real (error_function (Number x))) x (2 / sqrt PI * exp (- (x * x))).
Proof.
  intro x.
  set (a := - Rabs x - 1); set (b := Rabs x + 1).
  assert (a <= b /\ a < x < b /\ a <= 0) as (ordered & inside & below).
  { subst a b; unfold Rabs; destruct (Rcase_abs x); lra. }
  assert (forall z, a <= z <= b -> continuity_pt bell z) as smooth by (intros; apply bell_continuous).
  apply (derivable_pt_lim_locally_ext
    (fun z => 2 / sqrt PI * primitive ordered (FTC_P1 ordered smooth) z
      + 2 / sqrt PI * RiemannInt (bell_integrable 0 a)) _ x a b); [assumption | |].
  - intros z within; cbn [real error_function].
    unfold primitive; destruct (Rle_dec a z); [|lra]; destruct (Rle_dec z b); [|lra].
    rewrite <- (RiemannInt_P26 (bell_integrable 0 a) (bell_integrable a z) (bell_integrable 0 z)).
    rewrite (RiemannInt_P5 (FTC_P1 ordered smooth r r0) (bell_integrable a z)); ring.
  - enough (derivable_pt_lim (fun z => 2 / sqrt PI * primitive ordered (FTC_P1 ordered smooth) z
      + 2 / sqrt PI * RiemannInt (bell_integrable 0 a)) x (2 / sqrt PI * bell x + 0)) as found
      by (rewrite Rplus_0_r in found; exact found).
    apply (derivable_pt_lim_plus (mult_real_fct (2 / sqrt PI) (primitive ordered (FTC_P1 ordered smooth)))
      (fct_cte (2 / sqrt PI * RiemannInt (bell_integrable 0 a)))); [|apply derivable_pt_lim_const].
    apply derivable_pt_lim_scal, RiemannInt_P28; lra.
Qed.

(* Where a function jumps, it has no derivative. *)
Lemma jump : forall f x e d, 0 < e ->
  (forall r, 0 < r -> exists z, z <> x /\ Rabs (z - x) < r /\ e <= Rabs (f z - f x)) -> ~ derivable_pt_lim f x d.
Proof.
  intros f x e d positive far slope.
  destruct (derivable_continuous_pt f x (exist _ d slope) e positive) as (r & some & close).
  destruct (far r some) as (z & other & near_x & away).
  specialize (close z (conj (conj I (not_eq_sym other)) near_x)); simpl in close; unfold R_dist in close; lra.
Qed.

(* A remainder has a slope where the quotient's whole part stays. *)
Lemma stays : forall q x, continuity_pt q x -> continuity_pt (fun z => q z - IZR (Int_part (q z))) x ->
  exists e, 0 < e /\ forall z, x - e < z < x + e -> Int_part (q z) = Int_part (q x).
Proof.
  intros q x one other.
  destruct (one (1 / 2) ltac:(lra)) as (a & some_a & close_a).
  destruct (other (1 / 2) ltac:(lra)) as (b & some_b & close_b).
  exists (Rmin a b); split; [apply Rmin_pos; assumption|]; intros z within.
  destruct (Req_EM_T x z) as [->|differs]; [reflexivity|].
  pose proof (Rmin_l a b); pose proof (Rmin_r a b).
  assert (Rabs (z - x) < a /\ Rabs (z - x) < b) as (in_a & in_b) by (unfold Rabs; destruct (Rcase_abs (z - x)); lra).
  specialize (close_a z (conj (conj I differs) in_a)); specialize (close_b z (conj (conj I differs) in_b)).
  simpl in close_a, close_b; unfold R_dist in *.
  apply Rabs_def2 in close_a; apply Rabs_def2 in close_b.
  assert (-1 < IZR (Int_part (q z)) - IZR (Int_part (q x)) < 1) as whole by lra.
  rewrite <- minus_IZR in whole; destruct whole as [low high].
  apply (lt_IZR (-1)) in low; apply (lt_IZR _ 1) in high; lia.
Qed.

Lemma slope_of_remainder : forall y x d, y <> 0 ->
  derivable_pt_lim (fun x => real (remainder (Number x) (Number y))) x d -> d = 1.
Proof.
  intros y x d some slope.
  assert (forall z, real (remainder (Number z) (Number y)) = z - IZR (Int_part (z / y)) * y) as meant
    by (intro; unfold remainder; destruct (Req_EM_T y 0); [contradiction | reflexivity]).
  destruct (stays (fun z => z / y) x) as (e & positive & same).
  - apply derivable_continuous_pt; exists (1 * / y); apply (times_constant id), derivable_pt_lim_id.
  - apply (continuity_pt_locally_ext (fun z => real (remainder (Number z) (Number y)) * / y) _ 1 x); [lra | |].
    + intros z _; rewrite meant; field; assumption.
    + apply derivable_continuous_pt; exists (d * / y); apply times_constant, slope.
  - apply (uniqueness_limite _ _ _ _ slope).
    apply (near (fun z => 1 * z + - (IZR (Int_part (x / y)) * y)) _ _ _ e positive); [|apply linear].
    intros z within; rewrite meant, (same z within); ring.
Qed.

Lemma slope_of_remainder_by_divisor : forall x y d, y <> 0 ->
  derivable_pt_lim (fun y => real (remainder (Number x) (Number y))) y d -> d = - IZR (Int_part (x / y)).
Proof.
  intros x y d some slope.
  assert (forall z, z <> 0 -> real (remainder (Number x) (Number z)) = x - IZR (Int_part (x / z)) * z) as meant
    by (intros z other; unfold remainder; destruct (Req_EM_T z 0); [contradiction | reflexivity]).
  pose proof (Rabs_pos_lt y some) as size.
  assert (forall z, y - Rabs y < z < y + Rabs y -> z <> 0) as away
    by (intros z within ->; unfold Rabs in within; destruct (Rcase_abs y); lra).
  destruct (stays (fun z => x / z) y) as (e & positive & same).
  - apply derivable_continuous_pt; exists (- (x / (y * y))); apply inverse, some.
  - apply (continuity_pt_locally_ext (fun z => real (remainder (Number x) (Number z)) * (1 / z)) _ (Rabs y) y size).
    + intros z within; assert (z <> 0) by (apply away; apply Rabs_def2 in within; lra).
      rewrite meant by assumption; field; assumption.
    + apply (continuity_pt_mult (fun z => real (remainder (Number x) (Number z))) (fun z => 1 / z));
        apply derivable_continuous_pt; [exists d; exact slope | exists (- (1 / (y * y))); apply inverse, some].
  - apply (uniqueness_limite _ _ _ _ slope).
    apply (near (fun z => - IZR (Int_part (x / y)) * z + x) _ _ _ (Rmin e (Rabs y))); [apply Rmin_pos; assumption | | apply linear].
    pose proof (Rmin_l e (Rabs y)); pose proof (Rmin_r e (Rabs y)).
    intros z within; rewrite meant, (same z) by (try apply away; lra); ring.
Qed.

(* A power has a slope by its base where it is defined around, and by its exponent where the base is positive. *)
Lemma of_positive_power : forall y x, 0 < x -> derivable_pt_lim (fun z => exp (y * ln z)) x (y * exp ((y - 1) * ln x)).
Proof.
  intros y x positive; replace (y * exp ((y - 1) * ln x)) with (exp (y * ln x) * (/ x * y)).
  - apply (derivable_pt_lim_comp (fun z => y * ln z) exp); [|apply derivable_pt_lim_exp].
    apply (near (fun z => ln z * y) _ _ _ 1); [lra | intros; ring | apply times_constant, derivable_pt_lim_ln, positive].
  - replace ((y - 1) * ln x) with (y * ln x + - ln x) by ring; rewrite exp_plus, exp_Ropp, exp_ln by assumption; ring.
Qed.

Lemma power_of_positive : forall x y, 0 < x -> power (Number x) (Number y) = Number (exp (y * ln x)).
Proof.
  intros x y positive; unfold power, power_of_real; decisions; subst; try (exfalso; lra);
    rewrite ?Rmult_0_l, ?exp_0; reflexivity.
Qed.

Lemma of_power_of_positive : forall y x, 0 < x ->
  derivable_pt_lim (fun x => real (power (Number x) (Number y))) x (y * exp ((y - 1) * ln x)).
Proof.
  intros y x positive; apply (near (fun z => exp (y * ln z)) _ _ _ x positive); [|apply of_positive_power, positive].
  intros z within; rewrite power_of_positive by lra; reflexivity.
Qed.

Lemma power_of_negative : forall x y, x < 0 -> y = IZR (Int_part y) ->
  power (Number x) (Number y) = Number (sign_of_power (Int_part y) * exp (y * ln (- x))).
Proof.
  intros x y negative whole; unfold power, power_of_real; decisions; try (exfalso; lra); try contradiction; [|reflexivity].
  subst; rewrite (whole_part_is 0 0) by (simpl; lra); rewrite Rmult_0_l, exp_0; unfold sign_of_power; simpl.
  f_equal; ring.
Qed.

Lemma of_power_of_negative : forall y x, x < 0 -> y = IZR (Int_part y) ->
  derivable_pt_lim (fun x => real (power (Number x) (Number y))) x
    (- (y * sign_of_power (Int_part y) * exp ((y - 1) * ln (- x)))).
Proof.
  intros y x negative whole.
  apply (near (fun z => comp (fun t => exp (y * ln t)) (opp_fct id) z * sign_of_power (Int_part y)) _ _ _ (- x)); [lra | |].
  - intros z within; rewrite power_of_negative by (try assumption; lra); cbn [real]; unfold comp, opp_fct, id; ring.
  - replace (- (y * sign_of_power (Int_part y) * exp ((y - 1) * ln (- x))))
      with (y * exp ((y - 1) * ln (- x)) * - 1 * sign_of_power (Int_part y)) by ring.
    apply times_constant, (derivable_pt_lim_comp (opp_fct id)); [apply derivable_pt_lim_opp, derivable_pt_lim_id|].
    apply of_positive_power; unfold opp_fct, id; lra.
Qed.

Lemma one_less : forall y, y = IZR (Int_part y) -> y - 1 = IZR (Int_part (y - 1)) /\
  sign_of_power (Int_part (y - 1)) = - sign_of_power (Int_part y).
Proof.
  intros y whole; assert (Int_part (y - 1) = (Int_part y - 1)%Z) as less
    by (apply whole_part_is; rewrite minus_IZR; simpl; lra).
  rewrite less, minus_IZR; split; [simpl; lra|]; unfold sign_of_power; rewrite Z.even_sub; simpl.
  destruct (Z.even (Int_part y)); simpl; ring.
Qed.

Lemma slope_of_power_of_zero : forall y d, 1 < y ->
  derivable_pt_lim (fun x => real (power (Number x) (Number y))) 0 d -> d = 0.
Proof.
  intros y d steep slope; apply cond_eq; intros e positive; rewrite Rminus_0_r.
  destruct (slope (e / 2) ltac:(lra)) as [[delta some] close]; cbn [pos] in close; cbv beta in close.
  set (h := Rmin (delta / 2) (exp (ln (e / 2) / (y - 1)))).
  assert (0 < h) as up by (apply Rmin_pos; [lra | apply exp_pos]).
  assert (h <= delta / 2) as in_delta by apply Rmin_l.
  assert (h <= exp (ln (e / 2) / (y - 1))) as in_e by apply Rmin_r.
  specialize (close h ltac:(lra) ltac:(rewrite Rabs_right; lra)).
  rewrite Rplus_0_l, power_of_positive in close by assumption.
  replace (real (power (Number 0) (Number y))) with 0 in close
    by (unfold power, power_of_real; decisions; try (exfalso; lra); reflexivity).
  cbn [real] in close; rewrite Rminus_0_r in close.
  assert (exp (y * ln h) / h = exp ((y - 1) * ln h)) as quotient.
  { replace ((y - 1) * ln h) with (y * ln h + - ln h) by ring; rewrite exp_plus, exp_Ropp, exp_ln by assumption; reflexivity. }
  rewrite quotient in close.
  assert (exp ((y - 1) * ln h) <= e / 2) as flat.
  { apply Rnot_lt_le; intro above; apply ln_increasing in above; [|lra]; rewrite ln_exp in above.
    assert (ln (e / 2) / (y - 1) < ln h) as beyond.
    { apply (Rmult_lt_reg_r (y - 1)); [lra|].
      replace (ln (e / 2) / (y - 1) * (y - 1)) with (ln (e / 2)) by (field; lra); lra. }
    apply exp_increasing in beyond; rewrite exp_ln in beyond by assumption; lra. }
  pose proof (exp_pos ((y - 1) * ln h)); apply Rabs_def2 in close; unfold Rabs; destruct (Rcase_abs d); lra.
Qed.

Lemma of_power_by_exponent : forall x y, 0 < x ->
  derivable_pt_lim (fun y => real (power (Number x) (Number y))) y (exp (y * ln x) * ln x).
Proof.
  intros x y positive; apply (near (fun z => exp (z * ln x)) _ _ _ 1); [lra | |].
  - intros z _; rewrite power_of_positive by assumption; reflexivity.
  - replace (ln x) with (1 * ln x) at 2 by ring.
    apply (derivable_pt_lim_comp (fun z => z * ln x) exp); [|apply derivable_pt_lim_exp].
    apply (times_constant id), derivable_pt_lim_id.
Qed.

Lemma of_first_power : derivable_pt_lim (fun x => real (power (Number x) (Number 1))) 0 1.
Proof.
  apply (near id _ _ _ 1); [lra | | apply derivable_pt_lim_id].
  intros z _; unfold power, power_of_real, id; rewrite (whole_part_is 1 1) by lra; decisions; try (exfalso; lra);
    cbn [real]; rewrite ?Rmult_1_l, ?exp_ln by lra; unfold sign_of_power; simpl; lra.
Qed.

Lemma of_power_by_zero : forall x, derivable_pt_lim (fun x => real (power (Number x) (Number 0))) x 0.
Proof.
  intro x; apply (near (fct_cte 1) _ _ _ 1); [lra | | apply derivable_pt_lim_const].
  intros z _; unfold power; decisions; [reflexivity | contradiction].
Qed.

Lemma of_positive_power_of_zero : forall y, 0 < y -> derivable_pt_lim (fun y => real (power (Number 0) (Number y))) y 0.
Proof.
  intros y positive; apply (near (fct_cte 0) _ _ _ y positive); [|apply derivable_pt_lim_const].
  intros z within; unfold power, power_of_real; decisions; try (exfalso; lra); reflexivity.
Qed.

Lemma zero_to_zero : forall d, ~ derivable_pt_lim (fun y => real (power (Number 0) (Number y))) 0 d.
Proof.
  intro d; apply (jump _ _ 1); [lra|]; intros r some; exists (r / 2); rewrite Rminus_0_r, Rabs_right by lra.
  split; [lra|]; split; [lra|].
  unfold power, power_of_real; decisions; try (exfalso; lra); cbn [real]; rewrite Rabs_left; lra.
Qed.

(* A power of a negative base is defined for whole exponents. *)
Lemma whole_exponent : forall x y, x < 0 -> is_finite (power (Number x) (Number y)) = true -> y = IZR (Int_part y).
Proof.
  intros x y negative known; unfold power, power_of_real in known; decisions; try discriminate known; try (exfalso; lra);
    [subst; rewrite (whole_part_is 0 0); simpl; lra | assumption].
Qed.

Lemma sign_of_zero : sign_of_power (Int_part 0) = 1.
Proof. rewrite (whole_part_is 0 0) by (simpl; lra); reflexivity. Qed.

(* The tactics: the slope d is what one of the above says, where the operation has a value. *)
Ltac slope_is found :=
  match goal with slope : derivable_pt_lim ?F ?x ?d |- _ =>
    let same := fresh "same" in pose proof (uniqueness_limite F x d _ slope found) as same; subst d; clear slope
  end.

Ltac distinct x y :=
  let s := fresh "s" in destruct (Rtotal_order x y) as [s|[s|s]].

Ltac linear_slope a b e :=
  match goal with slope : derivable_pt_lim ?F ?x ?d |- _ =>
    assert (derivable_pt_lim F x a) as found by
      (apply (near (fun z => a * z + b) F x a e); [lra | | apply linear];
       intros; meanings; cbn [real]; unfold Rmax, Rmin, Rabs; decisions; cbn [real];
       first [ring | field; assumption | lra | exfalso; lra]);
    slope_is found
  end.

Ltac roots := try match goal with |- context [sqrt ?x] => pose proof (sqrt_lt_R0 x ltac:(lra)) end.

Ltac value_of_slope :=
  unfold refines; intros; meanings; rewrite ?sqrt_0 in *; decisions; defined; try discriminate; try congruence; try (exfalso; lra);
  apply (f_equal Number); try lra; try ring; try (field; nonzero).

Ltac where_defined :=
  match goal with known : is_finite _ = true |- _ =>
    cbv beta iota delta [
      is_finite minus power_of_two binary_logarithm logarithm_after_one reciprocal_root sigmoid choice kept plus times divide negate exponential logarithm
      root larger smaller hyperbolic_tangent sine cosine magnitude] in known;
    decisions; try discriminate known; clear known
  end.

Ltac corner_of a b :=
  match goal with slope : derivable_pt_lim ?F ?x ?d |- _ =>
    exfalso; apply (corner F x a b d); [lra | | | exact slope];
    intros; meanings; cbn [real]; unfold Rmax, Rmin, Rabs; decisions; lra
  end.

Ltac known_slope x :=
  first
  [ slope_is (of_exponential x)
  | slope_is (of_power_of_two x)
  | slope_is (of_sine x)
  | slope_is (of_error_function x)
  | slope_is (of_cosine x)
  | slope_is (of_hyperbolic_tangent x)
  | slope_is (of_sigmoid x)
  | slope_is (of_logarithm x ltac:(lra))
  | slope_is (of_binary_logarithm x ltac:(lra))
  | slope_is (of_logarithm_after_one x ltac:(lra))
  | slope_is (of_root x ltac:(lra))
  | slope_is (of_reciprocal_root x ltac:(pose proof sqrt_0; distinct 0 x; subst; lra))
  | match goal with |- context [Number ?c] => slope_is (of_division c x ltac:(assumption)) end ].

Ltac linear_slopes x :=
  first
  [ linear_slope 1 0 1 | linear_slope (-1) 0 1
  | match goal with c : R |- _ =>
      first
      [ linear_slope 1 c 1 | linear_slope (-1) c 1 | linear_slope 1 (- c) 1 | linear_slope c 0 1 | linear_slope (/ c) 0 1
      | linear_slope 0 c 1 ] end
  | distinct 0 x; subst; first [linear_slope 1 0 x | linear_slope (-1) 0 (- x) | corner_of 1 (-1)]
  | match goal with c : R |- _ => distinct c x; subst;
      first
      [ linear_slope 1 0 (x - c) | linear_slope 0 c (x - c) | linear_slope 1 0 (c - x) | linear_slope 0 c (c - x)
      | corner_of 1 0 | corner_of 0 1 ] end ].

Ltac powers :=
  match goal with known : is_finite (power (Number ?x) (Number ?y)) = true |- _ =>
    match goal with slope : derivable_pt_lim _ y _ |- _ =>
      distinct 0 x; [slope_is (of_power_by_exponent x y ltac:(assumption)) | subst x | clear slope];
      [ rewrite (power_of_positive x y) by assumption
      | distinct 0 y;
        [ slope_is (of_positive_power_of_zero y ltac:(assumption))
        | subst y; exfalso; exact (zero_to_zero _ slope)
        | clear slope ]
      | ]
    | slope : derivable_pt_lim _ x _ |- _ =>
      destruct (Req_EM_T y 0) as [->|]; [slope_is (of_power_by_zero x)|];
      [ | distinct 0 x;
        [ slope_is (of_power_of_positive y x ltac:(assumption))
        | subst x; distinct 1 y;
          [ pose proof (slope_of_power_of_zero y _ ltac:(assumption) slope); subst; clear slope
          | subst y; slope_is of_first_power
          | clear slope ]
        | let whole := fresh "whole" in pose proof (whole_exponent x y ltac:(assumption) known) as whole;
          slope_is (of_power_of_negative y x ltac:(assumption) whole);
          destruct (one_less y whole) ] ]
    end;
    clear known
  end.

Ltac value_of_power :=
  unfold refines; meanings; unfold power, power_of_real, choice; intros; decisions; subst; defined; try discriminate;
  try congruence; try (exfalso; lra); apply (f_equal Number);
  repeat match goal with
  | |- context [?y + - (1)] => change (y + - (1)) with (y - 1)
  | flat : ?y + - (1) = 0 |- _ => change (y - 1 = 0) in flat
  | turns : context [?y + - (1)] |- _ => change (y + - (1)) with (y - 1) in turns
  end;
  try match goal with flat : ?y - 1 = 0 |- _ => rewrite flat, ?sign_of_zero, ?Rmult_0_l, ?exp_0 in * end;
  try match goal with turns : ?a = - sign_of_power ?n |- _ => replace (sign_of_power n) with (- a) by lra end;
  ring.

Ltac remainders :=
  match goal with known : is_finite (remainder (Number ?x) (Number ?y)) = true |- _ =>
    let some := fresh "some" in let same := fresh "same" in
    assert (y <> 0) as some
      by (intro; subst; unfold remainder in known; decisions; [discriminate known | contradiction]);
    match goal with
    | slope : derivable_pt_lim _ y _ |- _ => pose proof (slope_of_remainder_by_divisor x y _ some slope) as same
    | slope : derivable_pt_lim _ x _ |- _ => pose proof (slope_of_remainder y x _ some slope) as same
    end; rewrite same in *; clear known
  end.

Ltac derivative :=
  intros; repeat match goal with H : changes_nothing _ |- _ => apply left_out in H end; kinds; subst; pose proof ln_lt_2;
  match goal with slope : derivable_pt_lim _ ?x _ |- _ =>
    first
    [ solve [powers; value_of_power]
    | solve [remainders; unfold whole_quotient; value_of_slope]
    | where_defined; first
    [ solve [known_slope x; value_of_slope]
    | solve [linear_slopes x; value_of_slope]
    | distinct 0 x; subst;
      first [known_slope x; roots; value_of_slope | value_of_slope | exfalso; lra] ] ]
  end.

(* Derivatives of operations by one real operand, where the others are fixed and the operation is defined. *)

From Coq Require Import Reals Lra Bool.
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
      is_finite minus power_of_two binary_logarithm logarithm_after_one reciprocal_root sigmoid choice plus times divide negate exponential logarithm
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

Ltac derivative :=
  intros; kinds; pose proof ln_lt_2;
  match goal with slope : derivable_pt_lim _ ?x _ |- _ =>
    where_defined;
    first
    [ solve [known_slope x; value_of_slope]
    | solve [linear_slopes x; value_of_slope]
    | distinct 0 x; subst;
      first [known_slope x; roots; value_of_slope | value_of_slope | exfalso; lra] ]
  end.

(* The tactics that prove laws: case analysis on values, induction over ranges, and arithmetic of reals.

   `law` proves the statement of a law or fails. No tactic knows a law by name, and none has a formula of one. *)

From Coq Require Import Reals Lra ZArith Lia List Bool Psatz Morphisms Setoid.
From Onepass Require Import Monoid Cascade Values Folds Totals.
Import ListNotations.
Open Scope R_scope.

(* Reals --------------------------------------------------------------------------------------------------------- *)

(* The cases of a decision, whether a real is below another or equal to it. *)
Ltac decisions :=
  repeat (cbv beta iota in *; first
  [ match goal with |- context [match ?d with _ => _ end] =>
      match type of d with sumbool _ _ => destruct d | sumor _ _ => destruct d as [[?|?]|?] end end
  | match goal with H : context [match ?d with _ => _ end] |- _ =>
      match type of d with sumbool _ _ => destruct d | sumor _ _ => destruct d as [[?|?]|?] end end ]).

Ltac positive_exponentials :=
  repeat match goal with
  | |- context [exp ?x] => lazymatch goal with H : 0 < exp x |- _ => fail | _ => pose proof (exp_pos x) end
  | _ : context [exp ?x] |- _ => lazymatch goal with H : 0 < exp x |- _ => fail | _ => pose proof (exp_pos x) end
  end.

Ltac positive :=
  first
  [ assumption | lra | apply exp_pos
  | apply Rinv_0_lt_compat; positive | apply Rmult_lt_0_compat; positive
  | positive_exponentials; nra ].

Ltac nonzero := repeat split; first [assumption | lra | nra | apply Rgt_not_eq, exp_pos | idtac].

Ltac exponents :=
  unfold Rminus in *; rewrite ?Ropp_plus_distr, ?Ropp_involutive in *; rewrite ?exp_plus, ?exp_Ropp, ?exp_0 in *.

Ltac logarithms :=
  unfold Rminus, Rdiv in *;
  repeat first
  [ rewrite ln_exp
  | match goal with |- context [ln (?x * ?y)] =>
      assert (0 < y) by positive; assert (0 < x) by (positive_exponentials; first [positive | nra]);
      rewrite (ln_mult x y) by assumption end
  | rewrite ln_Rinv by positive ].

(* A divisor has a sign, and its inverse has the same sign. *)
Ltac signs_of_inverses :=
  unfold Rdiv in *;
  repeat match goal with
  | n : ?c <> 0 |- _ =>
    let s := fresh "s" in
    destruct (Rtotal_order 0 c) as [s|[s|s]];
    [pose proof (Rinv_0_lt_compat c s) | exfalso; lra | pose proof (Rinv_lt_0_compat c s)]; clear n
  end.

Ltac impossible := exfalso; first [lra | positive_exponentials; first [lra | nra | signs_of_inverses; nra]].

(* A rounding keeps the larger of two numbers the larger. *)
Ltac increasing :=
  subst; unfold Rmax, Rmin in *;
  match goal with rises : forall x y, x <= y -> ?f x <= ?f y |- context [?f ?a] =>
    match goal with |- context [f ?b] =>
      lazymatch a with b => fail | _ => idtac end; is_var a; is_var b;
      pose proof (rises a b); pose proof (rises b a) end end;
  decisions; lra.

(* x + ln a = ln b by exponentials of both sides. *)
Ltac logarithms_of_sums :=
  apply exp_inv; rewrite exp_plus, !exp_ln by (positive_exponentials; lra); unfold Rmax, Rabs in *; decisions;
  try match goal with x : R, y : R |- _ => assert (x = y) by lra; subst end;
  exponents; positive_exponentials; field; nonzero.

Ltac reals :=
  first [ reflexivity | assumption | lra | ring
  | solve [subst; ring]
  | solve [apply f_equal; ring]
  | solve [field; nonzero]
  | solve [subst; field; nonzero]
  | solve [unfold Rmax, Rmin in *; decisions; first [lra | apply f_equal; ring | nra | impossible]]
  | solve [exponents; positive_exponentials; first [ring | field; nonzero | subst; field; nonzero]]
  | solve [unfold Rdiv, Rminus; rewrite exp_plus, exp_Ropp, exp_ln by lra; reflexivity]
  | solve [logarithms; first [lra | ring]]
  | solve [logarithms_of_sums]
  | solve [nra]
  | solve [logarithms; positive_exponentials; nra]
  | impossible
  | solve [increasing] ].

(* Scalars --------------------------------------------------------------------------------------------------------- *)

(* Variables are what they may be. *)
Ltac kinds :=
  repeat match goal with
  | x : option _ |- _ => destruct x
  | x : literal |- _ => destruct x
  | x : bool |- _ => destruct x
  | x : (_ * _)%type |- _ => destruct x
  | x : value |- _ => destruct x
  end.

Ltac meanings :=
  cbv beta iota delta [
    minus power_of_two binary_logarithm logarithm_after_one reciprocal_root sigmoid score written choice kept held scale_of
    mantissa_of scaled rescaled plus times divide negate exponential logarithm root larger smaller signed is_finite
    hyperbolic_tangent sine cosine magnitude less at_most equals andb orb negb] in *.

(* What is known of casts: they change nothing, or keep infinities and round reals. *)
Ltac casts :=
  repeat match goal with
  | H : changes_nothing _ |- _ => unfold changes_nothing in H
  | H : rounds ?f |- _ =>
    let round := fresh "round" in let rises := fresh "rises" in let meant := fresh "meant" in
    destruct H as (round & rises & meant)
  | H : forall a, ?f a = _ |- context [?f _] => rewrite !H
  | H : forall a, ?f a = _, K : context [?f ?x] |- _ => rewrite !H in K
  end.

(* What is known of values that are defined. *)
Ltac defined :=
  repeat match goal with
  | H : ?a <> Undefined -> _ |- _ => first [specialize (H ltac:(discriminate)) | clear H]
  | H : Number _ = Number _ |- _ => injection H as H
  end.

Ltac same :=
  first
  [ congruence
  | match goal with
    | |- Number _ = Number _ => apply f_equal; reals
    | |- _ => impossible
    end ].

(* Every case of the kinds of the variables and of the signs that a meaning needs. *)
Ltac cells :=
  intros; unfold refines in *; casts; kinds; meanings; intros; decisions; defined; try discriminate; same.

Ltac integers :=
  intros;
  repeat match goal with
  | H : (_ <=? _)%Z = true |- _ => apply Z.leb_le in H
  | H : (_ <? _)%Z = true |- _ => apply Z.ltb_lt in H
  end;
  first
  [ lia | nia
  | solve [rewrite Z.div_add_l; lia]
  | solve [rewrite Z.add_comm, Z.mod_add; lia]
  | solve [apply Z.div_small; lia]
  | solve [apply Z.mod_small; lia]
  | solve [apply Z.div_div; lia]
  | solve [rewrite Z.mul_comm; symmetry; apply Z.div_mod; assumption] ].

(* Induction over a range: the reductions of all its elements but one are any values for which the law holds ---------- *)

Ltac folds := unfold sum_over, product_over, highest_over, lowest_over, any_over, all_over, merged_over, over in *.

Ltac unknown_folds :=
  repeat match goal with
  | |- context [reduce ?A ?op ?unit (map ?f ?l)] =>
    let F := fresh "fold" in set (F := reduce A op unit (map f l)) in *; clearbody F
  end.

Ltac at_element i :=
  repeat match goal with
  | s : nat -> _ |- _ => let x := fresh s in set (x := s i) in *; clearbody x; clear s
  end.

Ltac range_of_any_size :=
  intros; casts; folds;
  lazymatch goal with |- context [seq 0 ?n] =>
    generalize (seq 0 n); let l := fresh "l" in let i := fresh "i" in let IH := fresh "IH" in
    intro l; induction l as [|i l IH];
    [ rewrite ?reduce_nil in *; casts; solve [cells]
    | rewrite ?reduce_cons in *; cbv beta in *; unknown_folds; casts; at_element i; solve [cells] ]
  end.

Ltac range_with_an_element :=
  intros; casts; folds;
  lazymatch goal with N : (0 < ?n)%nat |- _ =>
    let l := fresh "l" in let i := fresh "i" in let k := fresh "k" in let IH := fresh "IH" in let E := fresh "E" in
    destruct (range_has_an_element n N) as (i & l & E); rewrite E in *; clear E N; revert i;
    induction l as [|k l IH]; intro i;
    [ rewrite ?reduce_cons, ?reduce_nil in *; cbv beta in *; casts; at_element i; solve [cells]
    | specialize (IH k); rewrite !(reduce_cons _ _ _ _ _ i) in *; cbv beta in *; unknown_folds; casts; at_element i;
      solve [cells] ]
  end.

(* Sums of reals --------------------------------------------------------------------------------------------------- *)

Ltac real_sums :=
  repeat (erewrite sum_of_reals; [| let j := fresh "j" in intro j; cbv beta; real_sums; casts; reflexivity]).

(* Everything goes under the sums, and a sum of two sums is one. *)
Ltac into_sums :=
  unfold Rminus, Rdiv;
  repeat first
  [ progress setoid_rewrite total_scaled | progress setoid_rewrite total_scaled_left
  | progress setoid_rewrite total_negated | progress setoid_rewrite total_added ].

Ltac alike :=
  lazymatch goal with
  | |- total _ _ = total _ _ => apply total_alike; intros; alike
  | _ => reals
  end.

Ltac linear_sums := into_sums; first [solve [alike] | rewrite total_exchanged; alike].

Ltac not_negative := intros; cbv beta; first [apply Rle_0_sqr | nra | apply total_not_negative; not_negative].

Ltac sums_of_reals :=
  intros; casts; real_sums; cbv beta iota delta [minus plus times negate larger]; apply (f_equal Number);
  first
  [ solve [linear_sums]
  | match goal with |- ?a = Rmax ?b 0 =>
      let same := fresh in assert (same : a = b) by linear_sums;
      rewrite <- same; symmetry; apply Rmax_left; not_negative end ].

(* A quotient by a sum of exponentials, which is positive. *)
Ltac quotients_of_sums :=
  intros; casts; real_sums; unfold Rminus; repeat setoid_rewrite exp_plus; rewrite <- ?total_scaled;
  repeat match goal with |- context [total ?n ?f] =>
    let whole := fresh "whole" in
    assert (0 < total n f) by (apply total_positive; [lia | intros; positive]);
    set (whole := total n f) in *; clearbody whole
  end; cells.

(* A sum of exponentials, some of which may be absent: no negative number. *)
Ltac sums_of_exponentials :=
  intros; casts;
  match goal with |- context [sum_over ?n ?f] =>
    let whole := fresh "whole" in let same := fresh "same" in let sign := fresh "sign" in
    assert (same : exists whole, sum_over n f = Number whole /\ 0 <= whole);
    [ apply sum_not_negative; let j := fresh "j" in intro j; at_element j; kinds; meanings; eexists; split;
      first [reflexivity | lra | apply Rlt_le, exp_pos]
    | destruct same as (whole & same & sign); rewrite !same in *; clear same; cells ]
  end.

(* Other theorems about reductions ----------------------------------------------------------------------------------- *)

(* Two reductions by one monoid. *)
Ltac exchanged :=
  intros; try (intro; symmetry); first [apply states_exchanged | apply over_exchanged; solve [intros; cells]].

(* A range in blocks, cut in two, or in parts; what is read at an index of a part is the element there. *)
Ltac same_elements := repeat (apply over_alike; intros); cbv zeta; repeat (apply f_equal); lia.

Ltac parted :=
  intros; unfold refines; try (intro; symmetry); subst;
  first
  [ rewrite states_in_blocks; unfold merged_over; same_elements
  | apply states_in_parts; assumption
  | unfold sum_over, product_over, highest_over, lowest_over, any_over, all_over in *;
    first
    [ rewrite over_in_blocks by (intros; cells); same_elements
    | rewrite over_cut by (intros; cells); apply f_equal2; same_elements
    | unfold choice; apply over_in_parts; solve [assumption | intros; cells] ] ].

(* States that are the same element by element. *)
Ltac same_states :=
  intros; unfold merged_over; apply over_alike; let j := fresh "j" in intros j _; at_element j; kinds; meanings; decisions;
  first
  [ reflexivity
  | apply f_equal; apply f_equal2; apply (f_equal Number); reals ].

Ltac logarithms_of_literals :=
  repeat match goal with
  | |- context [logarithm (Number ?x)] =>
    rewrite !(logarithm_of_positive x) by lra; pose proof (ln_positive x ltac:(lra))
  end.

(* A place of a row: its score is no larger than the largest, or all are absent. *)
Ltac rows :=
  intros; logarithms_of_literals; rewrite ?highest_scaled by assumption;
  match goal with
  | within : (?j < ?n)%nat |- context [highest_over ?n (fun i => score (?s i))] =>
    rewrite !highest_of_scores;
    let found := fresh "found" in destruct (top n s) as [?|] eqn:found;
    [pose proof (top_above _ _ _ found j within) | pose proof (top_absent _ _ found j within)];
    clear found; at_element j
  end; cells.

Ltac absent_scores found :=
  try (rewrite sum_of_undefined;
    [ | assumption
    | let j := fresh "j" in let within := fresh in
      intros j within; rewrite (top_absent _ _ found j within); reflexivity]).

(* Rescaled states: those of scores that may be absent, or of reals. *)
Ltac states :=
  intros; rewrite ?highest_of_scores, ?merged_of_scores;
  try match goal with some : (0 < ?n)%nat |- _ =>
    rewrite ?(highest_of_reals n _ some), ?(merged_of_reals n _ _ some) end;
  try match goal with |- context [top ?n ?s] =>
    let found := fresh "found" in destruct (top n s) as [?|] eqn:found; cbn [score];
    [ rewrite ?weighted_sum_seen, ?sum_seen | absent_scores found ] end;
  unfold refines; intros;
  first
  [ reflexivity | congruence
  | real_sums; meanings; decisions; apply (f_equal Number); linear_sums ].

(* Any law: one about reductions is tried in several ways, each of which proves it or fails. *)
Ltac some_fold :=
  match goal with
  | |- context [sum_over] => idtac
  | |- context [product_over] => idtac
  | |- context [highest_over] => idtac
  | |- context [lowest_over] => idtac
  | |- context [any_over] => idtac
  | |- context [all_over] => idtac
  end.

Ltac law :=
  tryif match goal with |- context [merged_over] => idtac end then first [solve [parted] | solve [same_states] | solve [states] | solve [exchanged]]
  else tryif some_fold then
    first
    [ solve [sums_of_reals] | solve [range_of_any_size] | solve [range_with_an_element] | solve [exchanged]
    | solve [parted]
    | solve [rows] | solve [quotients_of_sums] | solve [sums_of_exponentials] | solve [cells] ]
  else first [solve [integers] | solve [cells]].

Lemma whole_part_is : forall n r, IZR n <= r < IZR n + 1 -> Int_part r = n.
Proof.
  intros n r within; unfold Int_part; rewrite <- (tech_up r (n + 1)); [ring | |]; rewrite plus_IZR; simpl; lra.
Qed.

(* Whole parts of given numbers. *)
Ltac whole_parts :=
  repeat match goal with |- context [Int_part ?x] =>
    first
    [ rewrite (whole_part_is 0 x) by lra | rewrite (whole_part_is 1 x) by lra | rewrite (whole_part_is 2 x) by lra
    | rewrite (whole_part_is 4 x) by lra | rewrite (whole_part_is (-1) x) by lra | rewrite (whole_part_is (-2) x) by lra
    | rewrite (whole_part_is (-4) x) by lra ] end.

(* The value of an operation or of a reduction at given numbers. *)
Ltac functions_of_numbers :=
  unfold tanh, sinh, cosh, Rabs, Rmax, Rmin, Rdiv, sign_of_power; cbn [Z.even]; decisions; try lra;
  repeat first
  [ rewrite RiemannInt_P9 | rewrite exp_0 | rewrite ln_1 | rewrite sqrt_1 | rewrite sqrt_0 | rewrite sin_0 | rewrite cos_0 | rewrite Ropp_0
  | rewrite Rmult_1_l | rewrite Rmult_0_l | rewrite exp_ln by lra | rewrite exp_Ropp | rewrite Rplus_0_r
  | match goal with
    | |- context [exp ?x] => replace (exp x) with 1 by (symmetry; replace x with 0 by lra; exact exp_0)
    | |- context [exp (2 * ln ?x)] => replace (2 * ln x) with (ln x + ln x) by ring; rewrite exp_plus
    | |- context [exp (-2 * ln ?x)] => replace (-2 * ln x) with (-(ln x + ln x)) by ring; rewrite exp_Ropp, exp_plus
    | |- context [ln (/ ?x)] => rewrite (ln_Rinv x) by lra
    | |- context [ln ?x * / ln ?x] => rewrite (Rinv_r (ln x)) by (pose proof (ln_positive x ltac:(lra)); lra)
    | |- IZR (Int_part ?x) = ?y =>
      apply f_equal; symmetry; unfold Int_part; apply Z.add_cancel_r with (p := 1%Z); rewrite Z.sub_add;
      apply tech_up; simpl; lra
    end ].

Ltac example :=
  intros; folds; unfold merge, combine;
  cbv beta iota zeta delta [reduce seq map fold_right binary_logarithm logarithm_after_one reciprocal_root whole_part];
  meanings; unfold power, power_of_real, power_by_infinite, power_of_infinite, remainder, whole_quotient, error_function;
  whole_parts; rewrite ?sqrt_0, ?sqrt_1 in *; unfold Rabs in *; decisions;
  first
  [ reflexivity | discriminate | congruence
  | exfalso; lra
  | apply (f_equal Number); first [lra | functions_of_numbers; first [lra | field; lra]]
  | exfalso; pose proof (ln_positive 2 ltac:(lra)); first [lra | positive_exponentials; lra]
  | unfold Rmax, Rmin; decisions; first [lra | congruence] ].

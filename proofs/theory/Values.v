(* Values as the laws of rules/ mean them: real numbers, two infinities, and what is undefined.

   Every operation is total here. A division by zero, ∞ - ∞, 0 · ∞ and a logarithm of a negative number are undefined.
   So are a negative power of zero, and of a negative number a power that is not whole.
   -∞ is the score of an absent element. Axioms: those of Rocq's reals. *)

From Coq Require Import Reals Lra ZArith Bool.
Open Scope R_scope.

Inductive value : Type := Number (x : R) | Above | Below | Undefined.

(* Variables of laws: a real or an absent score, and a literal, which may be infinite or no number. *)
Definition score (s : option R) : value := match s with Some x => Number x | None => Below end.
Inductive literal : Type := Finite (x : R) | PlusInfinity | MinusInfinity | NotANumber.
Definition written (c : literal) : value :=
  match c with
  | Finite x => Number x | PlusInfinity => Above | MinusInfinity => Below | NotANumber => Undefined
  end.

(* Where a is defined, b is the same. *)
Definition refines (a b : value) : Prop := a <> Undefined -> b = a.

Definition negate (a : value) : value :=
  match a with Number x => Number (- x) | Above => Below | Below => Above | Undefined => Undefined end.

Definition plus (a b : value) : value :=
  match a, b with
  | Number x, Number y => Number (x + y)
  | Undefined, _ | _, Undefined | Above, Below | Below, Above => Undefined
  | Above, _ | _, Above => Above
  | Below, _ | _, Below => Below
  end.

Definition minus (a b : value) : value := plus a (negate b).

(* The product of an infinity a and a real x. *)
Definition signed (x : R) (a : value) : value :=
  match total_order_T 0 x with inleft (left _) => a | inleft (right _) => Undefined | inright _ => negate a end.

Definition times (a b : value) : value :=
  match a, b with
  | Number x, Number y => Number (x * y)
  | Undefined, _ | _, Undefined => Undefined
  | Number x, i | i, Number x => signed x i
  | Above, Above | Below, Below => Above
  | _, _ => Below
  end.

Definition divide (a b : value) : value :=
  match a, b with
  | Undefined, _ | _, Undefined => Undefined
  | Number x, Number y => if Req_EM_T y 0 then Undefined else Number (x / y)
  | Number _, _ => Number 0
  | i, Number y => signed y i
  | _, _ => Undefined
  end.

Definition exponential (a : value) : value :=
  match a with Number x => Number (exp x) | Above => Above | Below => Number 0 | Undefined => Undefined end.
Definition power_of_two (a : value) : value := exponential (times a (Number (ln 2))).

Definition logarithm (a : value) : value :=
  match a with
  | Number x =>
    match total_order_T 0 x with
    | inleft (left _) => Number (ln x) | inleft (right _) => Below | inright _ => Undefined
    end
  | Above => Above
  | _ => Undefined
  end.
Definition binary_logarithm (a : value) : value := divide (logarithm a) (Number (ln 2)).
Definition logarithm_after_one (a : value) : value := logarithm (plus (Number 1) a).

Definition root (a : value) : value :=
  match a with
  | Number x => if Rlt_dec x 0 then Undefined else Number (sqrt x)
  | Above => Above
  | _ => Undefined
  end.
Definition reciprocal_root (a : value) : value := divide (Number 1) (root a).

Definition sine (a : value) : value := match a with Number x => Number (sin x) | _ => Undefined end.
Definition cosine (a : value) : value := match a with Number x => Number (cos x) | _ => Undefined end.
Definition hyperbolic_tangent (a : value) : value :=
  match a with
  | Number x => Number (tanh x) | Above => Number 1 | Below => Number (-1) | Undefined => Undefined
  end.
Definition sigmoid (a : value) : value := divide (Number 1) (plus (Number 1) (exponential (negate a))).
Definition magnitude (a : value) : value :=
  match a with Number x => Number (Rabs x) | Below => Above | _ => a end.
Definition whole_part (a : value) : value :=
  match a with Number x => Number (IZR (Int_part x)) | _ => a end.

Definition whole_quotient (a b : value) : value :=
  match a, b with
  | Number x, Number y => if Req_EM_T y 0 then Undefined else Number (IZR (Int_part (x / y)))
  | Number x, Above => Number (if Rlt_dec x 0 then -1 else 0)
  | Number x, Below => Number (if Rlt_dec 0 x then -1 else 0)
  | _, _ => Undefined
  end.
Definition remainder (a b : value) : value :=
  match a, b with
  | Number x, Number y => if Req_EM_T y 0 then Undefined else Number (x - IZR (Int_part (x / y)) * y)
  | Number x, Above => if Rlt_dec x 0 then Above else a
  | Number x, Below => if Rlt_dec 0 x then Below else a
  | _, _ => Undefined
  end.

(* Of a negative base, a power by a whole number is that of its magnitude with a sign, and any other is undefined. *)
Definition sign_of_power (n : Z) : R := if Z.even n then 1 else -1.
Definition power_of_real (x y : R) : value :=
  match total_order_T 0 x with
  | inleft (left _) => Number (exp (y * ln x))
  | inleft (right _) => if Rlt_dec y 0 then Undefined else Number 0
  | inright _ =>
    if Req_EM_T y (IZR (Int_part y)) then Number (sign_of_power (Int_part y) * exp (y * ln (- x))) else Undefined
  end.
(* A power by an infinity a, of a base that is not 0. *)
Definition power_by_infinite (x : R) (up : bool) : value :=
  match total_order_T (Rabs x) 1 with
  | inleft (left _) => if up then Number 0 else if Req_EM_T x 0 then Undefined else Above
  | inleft (right _) => Number 1
  | inright _ => if up then Above else Number 0
  end.
Definition power_of_infinite (up : bool) (y : R) : value :=
  if Rlt_dec y 0 then Number 0 else if up then Above
  else if Req_EM_T y (IZR (Int_part y)) then if Z.even (Int_part y) then Above else Below else Undefined.
Definition power (a b : value) : value :=
  match a, b with
  | Number x, Number y => if Req_EM_T y 0 then Number 1 else power_of_real x y
  | Number x, Undefined => if Req_EM_T x 1 then Number 1 else Undefined
  | Undefined, Number y => if Req_EM_T y 0 then Number 1 else Undefined
  | Number x, Above => power_by_infinite x true
  | Number x, Below => power_by_infinite x false
  | Above, Number y => if Req_EM_T y 0 then Number 1 else power_of_infinite true y
  | Below, Number y => if Req_EM_T y 0 then Number 1 else power_of_infinite false y
  | Undefined, _ | _, Undefined => Undefined
  | _, Above => Above
  | _, Below => Number 0
  end.

(* The integral of exp(-t²) exists on each range, as it is continuous. *)
Definition bell (t : R) : R := exp (- (t * t)).
Lemma bell_continuous : forall t, continuity_pt bell t.
Proof.
  intro t; apply derivable_continuous_pt.
  unfold bell; reg.
Qed.
Lemma bell_integrable : forall a b, Riemann_integrable bell a b.
Proof.
  intros a b; destruct (Rle_dec a b) as [up|down].
  - apply continuity_implies_RiemannInt; [assumption | intros; apply bell_continuous].
  - apply RiemannInt_P1, continuity_implies_RiemannInt; [lra | intros; apply bell_continuous].
Qed.
Definition error_function (a : value) : value :=
  match a with
  | Number x => Number (2 / sqrt PI * RiemannInt (bell_integrable 0 x))
  | Above => Number 1 | Below => Number (-1) | Undefined => Undefined
  end.

Definition choice {A : Type} (p : bool) (a b : A) : A := if p then a else b.
Definition kept {A : Type} (a : A) : A := a.
Definition is_finite (a : value) : bool := match a with Number _ => true | _ => false end.

Definition larger (a b : value) : value :=
  match a, b with
  | Number x, Number y => Number (Rmax x y)
  | Undefined, _ | _, Undefined => Undefined
  | Above, _ | _, Above => Above
  | Below, c | c, Below => c
  end.
Definition smaller (a b : value) : value :=
  match a, b with
  | Number x, Number y => Number (Rmin x y)
  | Undefined, _ | _, Undefined => Undefined
  | Below, _ | _, Below => Below
  | Above, c | c, Above => c
  end.

(* A comparison of an undefined value may be true or false: `unknown` says which, and laws hold for every `unknown`. *)
Section Comparisons.
  Variable unknown : value -> value -> bool.
  Definition less (a b : value) : bool :=
    match a, b with
    | Undefined, _ | _, Undefined => unknown a b
    | Number x, Number y => if Rlt_dec x y then true else false
    | Below, Below | Above, _ | _, Below => false
    | Below, _ | _, Above => true
    end.
  Definition at_most (a b : value) : bool :=
    match a, b with
    | Undefined, _ | _, Undefined => unknown a b
    | Number x, Number y => if Rle_dec x y then true else false
    | Below, _ | _, Above => true
    | Above, _ | _, Below => false
    end.
  Definition equals (a b : value) : bool :=
    match a, b with
    | Undefined, _ | _, Undefined => unknown a b
    | Number x, Number y => if Req_EM_T x y then true else false
    | Below, Below | Above, Above => true
    | _, _ => false
    end.
End Comparisons.

(* A cast to a dtype is an unknown function. Of floating dtypes it is known that it rounds, *)
Definition rounds (cast : value -> value) : Prop :=
  exists round : R -> R, (forall x y, x <= y -> round x <= round y) /\
  forall a, cast a = match a with Number x => Number (round x) | _ => a end.
(* or, where rounding is left out of a law, that it changes nothing. *)
Definition changes_nothing (cast : value -> value) : Prop := forall a, cast a = a.

(* A state of a rescaled sum: its scale and its mantissa. None: every element was absent. *)
Definition partial_sum : Type := option (value * value).
Definition rescaled (old new a : value) : value := times a (exponential (minus old new)).
Definition scaled (s w : value) : partial_sum :=
  match s with Below => None | _ => Some (s, rescaled s s w) end.
Definition scale_of (s : partial_sum) : value := match s with None => Below | Some (m, _) => m end.
Definition mantissa_of (s : partial_sum) : value := match s with None => Undefined | Some (_, a) => a end.
Definition present_where (p : bool) (s : partial_sum) : partial_sum := if p then s else None.
(* A variable for a state: a pair of reals, or absent. *)
Definition held (s : option (R * R)) : partial_sum :=
  match s with Some (m, a) => Some (Number m, Number a) | None => None end.

"""What a step of one worker takes: seconds = a + b * tokens + c * context tokens, learned from its reports.

Knows no sequences and no plans; the caller says how many tokens a step computed and how many it attended to.
"""

from __future__ import annotations

# Steps until a prediction is worth something, and steps that count: older ones fade.
MIN_STEPS = 8
MEMORY_STEPS = 48.0
# Steps between two solutions of the equations, after the first ones: of those each is much of what is known, and when
# a mesh begins under load, what its steps will take is extrapolated from them.
SOLVE_EVERY = 16
FIRST_STEPS = 64
# How much the last solution weighs where the steps of late say nothing, in steps.
PRIOR_WEIGHT = 0.01
# Tokens of a step of which nothing is known: few enough for a slow device, enough to learn from.
CAUTIOUS_TOKENS = 128
# Reports are in whole microseconds: less is no time at all.
LEAST_SECONDS = 1e-6
# A step that differs from its prediction by a larger factor counts as if it differed by this one.
MAX_SURPRISE = 2.0

Coefficients = tuple[float, float, float]


class StepTimes:
    """Least squares on relative errors, old steps fading out.

    An outlier is drawn near its prediction; the very first steps weigh less the longer they took, as a first one is
    often slow. Where late steps leave a coefficient open (a long decode says nothing of prefill), the last solution
    decides.
    """

    __slots__ = ("_coefficients", "_moments", "_most_context", "_steps", "_unsolved", "most_tokens", "slowest")
    _coefficients: Coefficients
    # Sums over steps of the products of (1, tokens, context, seconds), each over the expected seconds:
    # 11, 1t, 1c, tt, tc, cc, 1s, ts, cs.
    _moments: list[float]
    _steps: int
    _unsolved: int
    _most_context: int
    # Most tokens that a step has computed: beyond it a prediction is a guess.
    most_tokens: int
    # Seconds of the slowest step of late, as they were measured: fades as the others do.
    slowest: float

    def __init__(self) -> None:
        self._coefficients = (0.0, 0.0, 0.0)
        self._moments = [0.0] * 9
        self._steps = self._unsolved = 0
        self._most_context = self.most_tokens = 1
        self.slowest = 0.0

    def observe(self, num_tokens: int, context_tokens: int, seconds: float) -> None:
        """Learns from a step that ran. Steps that claim to have taken no time are ignored."""
        if seconds < LEAST_SECONDS:
            return
        keep = 1.0 - 1.0 / MEMORY_STEPS
        self.slowest = max(seconds, keep * self.slowest)
        expected = seconds
        if self._steps >= MIN_STEPS:
            expected = max(self._evaluate(num_tokens, context_tokens), LEAST_SECONDS)
            seconds = min(max(seconds, expected / MAX_SURPRISE), expected * MAX_SURPRISE)
        self._steps += 1
        self._unsolved += 1
        if num_tokens > self.most_tokens:
            self.most_tokens = num_tokens
        if context_tokens > self._most_context:
            self._most_context = context_tokens
        one = 1.0 / expected
        tokens, context, seconds = num_tokens * one, context_tokens * one, seconds * one
        m = self._moments
        m[0] = m[0] * keep + one * one
        m[1] = m[1] * keep + one * tokens
        m[2] = m[2] * keep + one * context
        m[3] = m[3] * keep + tokens * tokens
        m[4] = m[4] * keep + tokens * context
        m[5] = m[5] * keep + context * context
        m[6] = m[6] * keep + one * seconds
        m[7] = m[7] * keep + tokens * seconds
        m[8] = m[8] * keep + context * seconds
        if self._unsolved >= SOLVE_EVERY or self._steps <= FIRST_STEPS:
            self._solve()

    def predict(self, num_tokens: int, context_tokens: int) -> float | None:
        """Seconds that a step will take; None while too few have been seen."""
        return self._evaluate(num_tokens, context_tokens) if self._steps >= MIN_STEPS else None

    def knows(self, num_tokens: int) -> bool:
        """Whether a step of at least half the size has been seen: then this one takes no more than a few times as long
        as `predict` says, or, while that says nothing, `slowest`."""
        return self._steps > 0 and num_tokens <= 2 * self.most_tokens

    def tokens_within(self, seconds: float, context_tokens: int, expected: int = 0) -> int | None:
        """How many tokens a step may compute to take no longer than `seconds`, at least 0; None while unknown.

        At most twice what has been seen, or will have been by then (`expected`), or CAUTIOUS_TOKENS: beyond that the
        line may be anything.
        """
        if self._steps < MIN_STEPS:
            return None
        base, per_token, per_context = self._coefficients
        left = seconds - base - per_context * context_tokens
        most = max(2 * max(self.most_tokens, expected), CAUTIOUS_TOKENS)
        if left <= 0:
            return 0
        return most if left >= per_token * most else int(left / per_token)

    def seconds_of(self, num_tokens: int) -> float | None:
        """Seconds that computing these tokens adds to steps that run anyway; None while unknown."""
        return self._coefficients[1] * num_tokens if self._steps >= MIN_STEPS else None

    def _evaluate(self, num_tokens: int, context_tokens: int) -> float:
        base, per_token, per_context = self._coefficients
        return base + per_token * num_tokens + per_context * context_tokens

    def _solve(self) -> None:
        self._unsolved = 0
        m, last = self._moments, self._coefficients
        # The prior weighs PRIOR_WEIGHT steps of the largest features seen, so that units do not matter.
        weight = PRIOR_WEIGHT * m[0]
        scale = (1.0, float(self.most_tokens) ** 2, float(self._most_context) ** 2)
        prior = [weight * each for each in scale]
        matrix = (
            (m[0] + prior[0], m[1], m[2]),
            (m[1], m[3] + prior[1], m[4]),
            (m[2], m[4], m[5] + prior[2]),
        )
        vector = [m[6 + i] + prior[i] * last[i] for i in range(3)]
        self._coefficients = _solve_non_negative(matrix, vector)


def _solve_non_negative(matrix: tuple[tuple[float, float, float], ...], vector: list[float]) -> Coefficients:
    """Minimises x'Mx/2 - v'x over x >= 0 for a positive definite M: the best of the eight faces that is feasible."""
    best, best_value = (0.0, 0.0, 0.0), 0.0
    for active in ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,)):
        x = _solve_on(active, matrix, vector)
        if x is None or min(x) < 0.0:
            continue
        # At a stationary point of the face the value is -v'x/2.
        value = -(vector[0] * x[0] + vector[1] * x[1] + vector[2] * x[2])
        if value < best_value:
            best, best_value = x, value
        if len(active) == 3:
            break
    return best


def _solve_on(
    active: tuple[int, ...], matrix: tuple[tuple[float, float, float], ...], vector: list[float]
) -> Coefficients | None:
    """Gaussian elimination on the active variables, the others 0. None if a pivot vanishes."""
    rows = [[matrix[i][j] for j in active] + [vector[i]] for i in active]
    size = len(active)
    for pivot in range(size):
        head = rows[pivot][pivot]
        if head <= 1e-300:
            return None
        for below in range(pivot + 1, size):
            factor = rows[below][pivot] / head
            for column in range(pivot, size + 1):
                rows[below][column] -= factor * rows[pivot][column]
    x = [0.0, 0.0, 0.0]
    for pivot in reversed(range(size)):
        rest = rows[pivot][size]
        for column in range(pivot + 1, size):
            rest -= rows[pivot][column] * x[active[column]]
        x[active[pivot]] = rest / rows[pivot][pivot]
    return x[0], x[1], x[2]

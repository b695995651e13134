import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from soma.evaluation.ensemble import mixture_losses
from soma.measurements.active import active_experts, complementarity, pairs


def losses(windows=12, experts=5, scored=20, seed=0):
    generator = np.random.default_rng(seed)
    hard = generator.gamma(2, 1, size=(windows, 1, scored))
    return hard + generator.gamma(1, 0.5, size=(windows, experts, scored)) * np.arange(1, experts + 1)[:, None]


def blocks(array, size):
    return [array[i : i + size] for i in range(0, len(array), size)]


def test_mixtures_of_the_nearest_experts_for_each_document():
    all_, documents = losses(), np.array([3, 3, 7, 7, 7, 1, 1, 3, 3, 3, 3, 7])
    rows = active_experts(zip(blocks(all_, 5), blocks(documents, 5), strict=True))
    assert list(rows.columns) == ["k", "document", "nats", "bytes"]
    assert len(rows) == 5 * 3
    for row in rows.itertuples():
        own = all_[documents == row.document, : row.k]
        assert row.nats == pytest.approx(-np.log(np.exp(-own).mean(axis=1)).sum(), rel=1e-12)
        assert row.bytes == own.shape[0] * 20
    whole = active_experts([(all_, documents)])
    pd.testing.assert_frame_equal(rows, whole, rtol=1e-14)
    assert rows[rows.k == 1].nats.sum() == pytest.approx(all_[:, 0].sum(), rel=1e-12)


def test_pairs_against_each_pair_alone():
    all_ = losses()
    rows = pairs(blocks(all_, 5))
    assert list(zip(rows["first"], rows["second"], strict=True)) == list(itertools.combinations(range(5), 2))
    residuals = (all_ - all_.mean(axis=1, keepdims=True)).transpose(1, 0, 2).reshape(5, -1)
    for row in rows.itertuples():
        e, f = row.first, row.second
        assert row.first_loss == pytest.approx(all_[:, e].mean(), rel=1e-12)
        assert row.second_loss == pytest.approx(all_[:, f].mean(), rel=1e-12)
        mixture = mixture_losses(all_[:, [e, f]]).mean()
        assert row.gain == pytest.approx((row.first_loss + row.second_loss) / 2 - mixture, rel=1e-10)
        assert row.gain == pytest.approx(np.log(np.cosh((all_[:, e] - all_[:, f]) / 2)).mean(), rel=1e-10)
        assert row.correlation == pytest.approx(np.corrcoef(residuals[e], residuals[f])[0, 1], rel=1e-10)
    assert (rows.gain > 0).all()  # by Jensen's inequality
    pd.testing.assert_frame_equal(rows, pairs([all_]), rtol=1e-10)


def test_what_is_hard_for_everyone_is_no_similarity():
    all_ = losses()
    harder = all_ + 10 * np.random.default_rng(1).gamma(1, size=(12, 1, 20))
    columns = ["gain", "correlation"]
    pd.testing.assert_frame_equal(pairs([all_])[columns], pairs([harder])[columns], rtol=1e-8)


def test_an_expert_and_its_copy_gain_nothing():
    all_ = losses()
    all_[:, 3] = all_[:, 1]
    rows = pairs([all_]).set_index(["first", "second"])
    assert rows.gain[1, 3] == pytest.approx(0, abs=1e-12)
    assert rows.correlation[1, 3] == pytest.approx(1, rel=1e-12)
    assert rows.gain.drop((1, 3)).min() > 0.01


def two_families(experts, seed, shared=1.0):
    """Build experts of two families with shared errors; averaging within a family gains less."""
    generator = np.random.default_rng(seed)
    errors = shared * generator.normal(size=(400, 2, 10))[:, np.arange(experts) % 2]
    return 8 + errors + generator.normal(size=(400, experts, 10))


def test_similar_pairs_gain_less():
    rows = pairs([two_families(8, 0)])
    row = complementarity(rows, 2000, 0).iloc[0]
    assert row.spearman == pytest.approx(spearmanr(rows.correlation, rows.gain).statistic, rel=1e-12)
    assert row.spearman < -0.5
    assert row.p_value < 0.05
    assert (row.experts, row.pairs, row.permutations) == (8, 28, 2000)
    assert row.mean_gain == pytest.approx(rows.gain.mean())
    pd.testing.assert_frame_equal(complementarity(rows, 2000, 0), complementarity(rows, 2000, 0))


def test_the_p_value_is_that_of_all_permutations():
    rows = pairs([losses(experts=4)])
    matrix = np.zeros((4, 4))
    matrix[rows["first"], rows["second"]] = matrix[rows["second"], rows["first"]] = rows.correlation
    correlations = []
    for order in itertools.permutations(range(4)):
        moved = matrix[np.ix_(order, order)][rows["first"], rows["second"]]
        correlations.append(spearmanr(moved, rows.gain).statistic)
    exact = np.mean(np.array(correlations) <= correlations[0] + 1e-12)
    assert complementarity(rows, 4000, 0).p_value[0] == pytest.approx(exact, abs=0.03)


def test_the_p_value_is_uniform_without_a_relation():
    first, second = np.triu_indices(7, 1)
    generator, values = np.random.default_rng(0), []
    for trial in range(200):
        # Both measures depend on the experts, so pairs are not independent.
        one, other = (generator.normal(size=7) for _ in range(2))
        rows = pd.DataFrame({"first": first, "second": second, "correlation": one[first] + one[second]})
        values.append(complementarity(rows.assign(gain=other[first] + other[second]), 99, trial).p_value[0])
    values = np.array(values)
    assert 0.005 <= (values <= 0.05).mean() <= 0.1
    assert 0.4 <= values.mean() <= 0.6


def test_impossible_input_is_refused():
    with pytest.raises(ValueError, match="2 experts: residuals need three or more"):
        pairs([losses(experts=2)])
    for function in (pairs, active_experts):
        with pytest.raises(ValueError, match="no losses"):
            function([])
    with pytest.raises(ValueError, match="12 windows, but documents for 2"):
        active_experts([(losses(), np.zeros(2, int))])
    with pytest.raises(ValueError, match="expert 0 loses as much as the mean"):
        pairs([np.ones((2, 3, 4))])
    constant = pairs([losses()]).assign(gain=1.0)
    with pytest.raises(ValueError, match="all pairs gain the same"):
        complementarity(constant, 10, 0)

"""Each objective with each learner: whether the models of all ranks are equal, and their error against one process."""

import lightgbm
import numpy as np

import rabit

rabit.init()
rank, size = rabit.rank(), rabit.size()
random = np.random.default_rng(0)
rows = random.normal(size=(4000, 12))
values = rows[:, 0] * 2 + np.sin(rows[:, 1] * 3) + rows[:, 2] * rows[:, 3]
mine = slice(rank, None, size)
QUERY = 20


def error(model, objective):
    found = model.predict(rows)
    if objective == "regression":
        return float(np.mean((found - values) ** 2) / np.var(values))
    return float(np.mean((found > (0.5 if objective == "binary" else np.median(found))) != (values > 0)))


def data(part, labels, objective):
    groups = {"group": np.full(len(labels) // QUERY, QUERY)} if objective == "lambdarank" else {}
    return lightgbm.Dataset(part, labels, **groups)


for objective in ("regression", "binary", "lambdarank"):
    labels = values if objective == "regression" else (values > 0).astype(int)
    params = {"objective": objective, "verbose": -1, "num_leaves": 15, "num_threads": 1}
    alone = lightgbm.train(params, data(rows, labels, objective), num_boost_round=15)
    for learner in ("data", "voting"):
        model = rabit.lightgbm.train(
            {**params, "tree_learner": learner},
            data(rows[mine], labels[mine], objective),
            num_boost_round=15,
        )
        texts = rabit.allgather_object(model.model_to_string())
        if rank == 0:
            is_equal = len(set(texts)) == 1
            print(objective, learner, is_equal, error(model, objective), error(alone, objective))

estimator = lightgbm.LGBMRegressor(n_estimators=5, num_threads=1, verbose=-1)
rabit.lightgbm.fit(estimator, rows[mine], values[mine])
texts = rabit.allgather_object(estimator.booster_.model_to_string())
if rank == 0:
    print("estimator", "data", len(set(texts)) == 1, 0.0, 0.0)

"""Other libraries on rabit's collectives: rabit.lightgbm, rabit.jax, rabit.keras, rabit.ray, rabit.xgboost.

Each is a module here; the library that it serves loads with the first call, and nothing in the package imports them.
"""

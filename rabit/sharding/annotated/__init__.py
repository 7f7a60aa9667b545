"""Annotations: arrays whose dimensions are divided along the axes of a mesh, and programs completed from a few of them.

Sources: Xu et al., GSPMD: General and Scalable Parallelization for ML Computation Graphs (2021), for annotations and
their propagation; Shardy, for dimensions as factors of an operation.
"""

"""What collectives cost here: `rabitrun bench`, which is `python -m rabit.bench` on every rank."""

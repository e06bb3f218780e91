"""Parts of `simulate_routing.py`: the traces, the engines' caches, the rules that choose, the run itself, the plot."""

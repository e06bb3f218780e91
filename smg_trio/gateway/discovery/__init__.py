"""Workers behind HTTP that are found instead of named: by DNS (`dns`), or as pods of Kubernetes.

`pods` is what a pod means (pure), `kubernetes_api` lists and watches them, `kubernetes` follows them.
`found_workers` has workers come and go for both.
"""

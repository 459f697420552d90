"""Both Jacobians: by the rules, and by probes on the forward run."""

"""CCPO as its paper prints it, and each repair of it: rollouts with critics, CPO's trust region, the flags."""

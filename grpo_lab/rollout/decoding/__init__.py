"""Drawing tokens one after another: the samplers, their key-value cache, and the turns of policy and environment."""

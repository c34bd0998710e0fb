"""What the sessions taught us: observations, distilled units, and the view folded from everybody's.

Sees ``mesh.base`` only. Must not know of links, processes, files of agents, or HTTP.
"""

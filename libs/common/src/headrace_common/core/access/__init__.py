"""
Who may do what: principals, grants, roles, and the policy that is compiled from them. Nothing in here does I/O.

``state.Access`` is everything that decides; ``decisions.Decisions`` answers requests from it, ``explain`` says why, and
``review.plan`` gives the next ``Access`` after a batch of changes.
"""

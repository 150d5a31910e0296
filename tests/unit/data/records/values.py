"""Records and messages that several tests of this folder write."""

from __future__ import annotations

from tests.unit.data.helpers import assistant, user

SYSTEM = {"role": "system", "content": "S"}
HG = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
UA = [user("Q"), assistant("A")]
TOOL = {"name": "f", "description": "d", "parameters": {}}
Q, C, R = [user("Q")], [assistant("C")], [assistant("R")]
"""A question, the chosen and the rejected answer."""

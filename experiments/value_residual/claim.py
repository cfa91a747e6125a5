"""Values of the first layer, mixed into those of later layers."""

from attnlab.claims import Arm, AtMost, Claim, Pilot, Trained

SOFTMAX, RESIDUAL = Arm("softmax", ("attn=sdpa",)), Arm("residual", ("attn=value_residual",))

CLAIM = Claim(
    says="A value residual lowers the loss.",
    last_look=20,
    first_seed=200,
    headline="loss",
    order=22,
    predictions=(
        Trained(
            "loss",
            "A second layer that mixes in the values of the first has a lower loss.",
            AtMost(0.0),
            where="two layers",
            pilot=Pilot(-0.012, 0.007),
            arms=(RESIDUAL, SOFTMAX),
            rates=(3e-3, 1e-2, 3e-2),
            lengths=(300, 1200),
        ),
    ),
)

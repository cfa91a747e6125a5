"""Values of the first layer, mixed into those of later layers."""

from attnlab.claims import Arm, AtLeast, Claim, Pilot, Trained

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
            "A second layer with values of the first lowers the loss by less than 0.03 nats.",
            AtLeast(-0.03),
            bearing="against",
            where="two layers, a loss that is 0.03 nats lower",
            pilot=Pilot(-0.0064, 0.014),
            arms=(RESIDUAL, SOFTMAX),
            rates=(3e-3, 1e-2, 3e-2),
            lengths=(300, 1200),
        ),
    ),
)

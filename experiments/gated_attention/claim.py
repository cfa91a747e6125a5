"""A gate on the mixed values of attention: the loss, and the weight on the first position."""

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Pilot, RunMetric, Trained, level

from .measure import on_backcopy, on_text

RATES = (3e-3, 1e-2, 3e-2)
LENGTHS = (300, 1200)
SHORT = ("trainer.max_steps=300", "trainer.val_check_interval=300")
# A narrower MLP makes up for the gate: all arms have equal parameters.
HEAD = ("attn=gate_head", "model.mlp_ratio=3.96875")
CHANNEL = ("attn=gate_channel", "model.mlp_ratio=3.5")
SOFTMAX, GATED = Arm("softmax", ("attn=sdpa",)), Arm("gated", HEAD)
# In a text model of this size there is no sink. This task makes one, with learned positions.
BACKCOPY = ("data=backcopy", "model.n_layer=1", "model.learned_positions=true", "attn.rotary=null")
PLAIN_SINK = Arm("softmax, backcopy", ("attn=sdpa", *BACKCOPY))
GATED_SINK = Arm("gated, backcopy", (*HEAD, *BACKCOPY))
START = RunMetric(on_backcopy, "plain")
WEIGHT = "of the weight"

CLAIM = Claim(
    says="A gate on each head lowers the loss and removes the attention sink.",
    last_look=20,
    first_seed=200,
    headline="loss",
    order=21,
    predictions=(
        Trained(
            "loss",
            "A gate on each head lowers the loss by less than 0.02 nats.",
            AtLeast(-0.02),
            bearing="against",
            where="a loss that is 0.02 nats lower",
            pilot=Pilot(0.00844, 0.013),
            arms=(GATED, SOFTMAX),
            rates=RATES,
            lengths=LENGTHS,
        ),
        Trained(
            "sink",
            "In a task that gives softmax attention a sink, gated heads have at most 0.3 there.",
            AtMost(0.3, unit=WEIGHT),
            where="no sink in a task in which softmax attention has one",
            pilot=Pilot(0.191, 0.067),
            arms=(GATED_SINK,),
            contrast=level,
            metric=START,
            rates=RATES,
            lengths=LENGTHS,
        ),
        Trained(
            "softmax_sink",
            "In that task, softmax attention has at least 0.3 of its weight on the start.",
            AtLeast(0.3, unit=WEIGHT),
            role="control",
            pilot=Pilot(0.47, 0.12),
            arms=(PLAIN_SINK,),
            contrast=level,
            metric=START,
            rates=RATES,
            lengths=LENGTHS,
        ),
        Trained(
            "text_sink",
            "On TinyShakespeare there is no sink: softmax attention gives the first position less "
            "than even weights would.",
            AtMost(1.0, unit="times even weights"),
            role="secondary",
            pilot=Pilot(0.373, 0.077),
            arms=(SOFTMAX,),
            contrast=level,
            metric=RunMetric(on_text, "mean"),
            rates=RATES,
            lengths=LENGTHS,
        ),
        Trained(
            "channels",
            "A gate on each channel lowers the loss by less than 0.03 nats after 300 steps.",
            AtLeast(-0.03),
            role="secondary",
            pilot=Pilot(-0.0117, 0.0082),
            arms=(
                Arm("gated channels, 300 steps", (*CHANNEL, *SHORT)),
                Arm("softmax, 300 steps", (*SOFTMAX.overrides, *SHORT)),
            ),
            rates=RATES,
        ),
    ),
)

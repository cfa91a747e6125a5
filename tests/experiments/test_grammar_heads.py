import torch

from attnlab.data.corpora import encode
from experiments.grammar_heads import measure

TEXT = (
    "x" * 70
    + "\nWhere is the old harp?\n\nAda:\nWhy, the harp sinks.\n"
    + "Where is the old harp?\n\nAda:\nWhy, the lamp sinks.\n"
    + "[Ada looks coldly at Tom.]\n"
)
ALPHABET = "".join(sorted(set(TEXT)))


def decoded(ids: torch.Tensor) -> str:
    return "".join(ALPHABET[i] for i in ids)


def test_only_repeated_nouns_are_found():
    found = measure.find(measure.NOUN, TEXT, encode(TEXT, ALPHABET), 64)
    assert len(found.ids) == 1
    row, queries = found.ids[0], found.queries[0]
    assert decoded(row[found.start[0] : found.stop[0]]) == "harp"
    assert decoded(row[1:][queries]) == "arp"  # what is predicted from the copy's first letter on


def test_a_stage_direction_is_found():
    found = measure.find(measure.BRACKET, TEXT, encode(TEXT, ALPHABET), 64)
    assert decoded(found.ids[0][found.start[0] : found.stop[0]]) == "["
    assert decoded(found.ids[0][1:][found.queries[0]]) == "]"


def test_a_head_that_attends_to_the_span_has_all_its_weight_there():
    found = measure.find(measure.BRACKET, TEXT, encode(TEXT, ALPHABET), 64)
    pattern = torch.zeros(1, 2, 64, 64)
    pattern[:, 0, :, found.start[0]] = 1
    pattern[:, 1] = torch.eye(64)
    assert measure.weight_on_span(pattern, *found[1:]).tolist() == [[1.0, 0.0]]


def test_a_removed_head_has_no_effect():
    net = measure.untrained_net(0)
    ids = torch.randint(net.vocab_size, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = measure.without_head(net, 5)  # the second head of the second layer
    heads = net.blocks[1].attn.head_size
    with torch.no_grad():
        assert not torch.equal(net(ids), changed(ids))
        changed.blocks[1].attn.qkv.weight[2 * 64 + heads : 2 * 64 + 2 * heads] += 1  # its values
        net_again = measure.without_head(net, 5)
        assert torch.equal(net_again(ids), changed(ids))

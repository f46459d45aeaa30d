"""BERT: heads with biases in both directions, and in one as a decoder."""

from typing import Any

from parity_tests.peers import Model

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 8,
}
# Their positions begin after the padding's number.
KIN = SMALL | {"max_position_embeddings": 12, "pad_token_id": 0}
AT = "encoder.layer.{layer}.attention."

PEERS = {
    "both ways": Model("BertModel", SMALL, f"{AT}self", f"{AT}output.dense"),
    "decoder": Model(
        "BertLMHeadModel", SMALL | {"is_decoder": True}, f"bert.{AT}self", f"bert.{AT}output.dense", layers=(1,)
    ),
    "RoBERTa": Model("RobertaForMaskedLM", KIN, f"roberta.{AT}self", f"roberta.{AT}output.dense", layers=(1,)),
    "XLM-RoBERTa": Model("XLMRobertaModel", KIN, f"{AT}self", f"{AT}output.dense", layers=(1,)),
    "CamemBERT": Model("CamembertModel", KIN, f"{AT}self", f"{AT}output.dense", layers=(1,)),
    "ELECTRA": Model(
        "ElectraForPreTraining",
        KIN | {"embedding_size": 5},
        f"electra.{AT}self",
        f"electra.{AT}output.dense",
        layers=(1,),
    ),
}

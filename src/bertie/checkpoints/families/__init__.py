"""The families of checkpoints, one file each: names of weights and configuration keys, bertie's and Hugging Face's.

family.py describes a family, settings.py has the keys and checks of config.json that several share. The families:
albert.py, bert.py, deberta_v2.py, distilbert.py, electra.py, eurobert.py, gpt2.py, modernbert.py, modernbert_decoder.py,
mpnet.py, nomic_bert.py, openai_gpt.py, reformer.py, roberta.py (with CamemBERT and XLM-RoBERTa), xlm.py, xlnet.py, and own.py for
models that transformers does not have.

To add a family, add a file here and its `FAMILY` to the list.
"""

from __future__ import annotations

from bertie.checkpoints.families import (
    albert,
    bert,
    deberta_v2,
    distilbert,
    electra,
    eurobert,
    gpt2,
    modernbert,
    modernbert_decoder,
    mpnet,
    nomic_bert,
    openai_gpt,
    own,
    reformer,
    roberta,
    xlm,
    xlnet,
)
from bertie.checkpoints.families.family import Family
from bertie.model.encoder import EncoderConfig

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(roberta.FAMILY, bert.FAMILY, gpt2.FAMILY, distilbert.FAMILY, electra.FAMILY, xlm.FAMILY, modernbert.FAMILY),
        *(xlnet.FAMILY, albert.FAMILY, roberta.XLM_ROBERTA, roberta.CAMEMBERT, mpnet.FAMILY, deberta_v2.FAMILY),
        *(openai_gpt.FAMILY, nomic_bert.FAMILY, eurobert.FAMILY, reformer.FAMILY, modernbert_decoder.FAMILY),
        own.FAMILY,
    )
}
"""All families by model_type. The first one that represents an encoder is the format in which it is saved."""


def family_of(config: EncoderConfig) -> Family:
    """Return the family in whose format an encoder is saved."""
    return next(family for family in FAMILIES.values() if family.settings.fits(config))

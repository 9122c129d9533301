"""The families of checkpoints, one file each: names of weights and configuration keys, bertie's and Hugging Face's.

family.py is what a family is, settings.py has the keys and checks of config.json that several share. The families:
albert.py, bert.py, camembert.py, deberta_v2.py, distilbert.py, electra.py, eurobert.py, gpt2.py, modernbert.py, mpnet.py,
nomic_bert.py, openai_gpt.py, reformer.py, roberta.py, xlm.py, xlm_roberta.py, xlnet.py, and own.py for models that
transformers does not have.

To add a family, add a file here and its `FAMILY` to the list.
"""

from __future__ import annotations

from bertie.checkpoints.families import (
    albert,
    bert,
    camembert,
    deberta_v2,
    distilbert,
    electra,
    eurobert,
    gpt2,
    modernbert,
    mpnet,
    nomic_bert,
    openai_gpt,
    own,
    reformer,
    roberta,
    xlm,
    xlm_roberta,
    xlnet,
)
from bertie.checkpoints.families.family import Family
from bertie.model.encoder import EncoderConfig

FAMILIES = (
    *(roberta.FAMILY, bert.FAMILY, gpt2.FAMILY, distilbert.FAMILY, electra.FAMILY, xlm.FAMILY, modernbert.FAMILY),
    *(xlnet.FAMILY, albert.FAMILY, xlm_roberta.FAMILY, camembert.FAMILY, mpnet.FAMILY, deberta_v2.FAMILY),
    *(openai_gpt.FAMILY, nomic_bert.FAMILY, eurobert.FAMILY, reformer.FAMILY, own.FAMILY),
)
"""All families. The first one that represents an encoder is the format in which it is saved."""


def family_of(config: EncoderConfig) -> Family:
    """Return the family in whose format an encoder is saved."""
    return next(each for each in FAMILIES if each.settings.fits(config))


def family_named(model_type: str) -> Family | None:
    """Return the family of a config.json. None if bertie does not know it."""
    return next((family for family in FAMILIES if family.model_type == model_type), None)

import numpy as np, torch, pytest
def test_a(small_shards, small_tokenizer, tiny_config, tmp_path):
    from bertie.training.pretrain import PretrainConfig, Training, pretrain
    from bertie.batches.layouts import Pairs
    from bertie.objectives import MaskedLM, NextSentence
    from bertie.training.optimizers import AdamW
    from bertie.training.schedules import Linear
    c=PretrainConfig(tiny_config, Pairs(max_length=32),(MaskedLM(),NextSentence()),AdamW(),Linear(),Training(steps=10,batch_size=16,learning_rate=1e-3,row_tokens=256,precision="bf16"))
    print(pretrain(c,small_shards,tmp_path/"run",threads=1))
def test_shapes_are_checked(tiny_config):
    from bertie.model.layers import Layer
    from bertie.contracts import Ragged
    l=Layer(tiny_config,"dense")
    with pytest.raises(Exception) as e:
        l(torch.zeros(3,32,1),Ragged(torch.tensor([0,3]),8))
    print(type(e.value), str(e.value)[:300])

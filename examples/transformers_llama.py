"""A Llama of transformers, with compiled functions in the place of its norms, MLPs and more.

Its weights are random: nothing is downloaded. It needs `pip install 'babytriton[transformers]'`.
"""

import torch
import transformers

import babytriton as bt


def main() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.randint(3, 256, (1, 8))

    def generate() -> list[int]:
        generated = model.generate(
            prompt, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None
        )
        return generated[0, 8:].tolist()

    eager = generate()
    print("eager:    ", eager)

    print(bt.integrations.transformers.optimize(model), "\n")
    print("optimized:", generate())
    print(model.model.layers[0].mlp)

    # A step of training: the gradients are compiled as well.
    model(prompt, labels=prompt).loss.backward()
    print("gradients:", all(x.grad is not None for x in model.parameters()))

    bt.integrations.transformers.restore(model)
    print("restored: ", generate())


if __name__ == "__main__":
    main()

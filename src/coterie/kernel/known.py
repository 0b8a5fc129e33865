"""The layers of torch that the kernel knows, and what each is to a chain."""

from __future__ import annotations

from torch import nn

from coterie.kernel.chain import BATCH, Chain, NotKnown, register_layer


def _pool(chain: Chain, name: str, module: nn.MaxPool2d) -> None:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    chain.pool(chain.label(name), {each: getattr(module, each) for each in names})


def _unflatten(chain: Chain, name: str, module: nn.Unflatten) -> None:
    if module.dim != 1 or len(chain.shape) != 1:
        raise NotKnown(f"layer {chain.label(name)} is not known to the kernel")
    chain.reshape([BATCH, *module.unflattened_size])


def _average(chain: Chain, name: str, module: nn.AvgPool2d) -> None:
    names = ("kernel_size", "stride", "padding", "ceil_mode", "divisor_override")
    chain.average_pool(chain.label(name), {each: getattr(module, each) for each in names})


def _dropout_of_channels(chain: Chain, name: str, module: nn.Dropout2d) -> None:
    if module.p:
        raise NotKnown(f"layer {chain.label(name)} is not known to the kernel")


def _batch_norm(chain: Chain, name: str, layer: nn.BatchNorm2d) -> None:
    if layer.momentum is None:
        raise NotKnown(f"{chain.label(name)} has no momentum: its running statistics are means over all steps")
    if chain.shape[1:] == (1, 1):  # torch refuses it in a batch of one sample
        raise NotKnown(f"{chain.label(name)} normalises maps of a single pixel")
    chain.norm(name, layer.num_features, layer.eps, momentum=layer.momentum)


def _group_norm(chain: Chain, name: str, layer: nn.GroupNorm) -> None:
    chain.norm(name, layer.num_channels, layer.eps, groups=layer.num_groups)


register_layer(nn.Linear, lambda chain, name, layer: chain.linear(name, layer.in_features, layer.out_features))
register_layer(nn.Conv2d, lambda chain, name, layer: chain.convolution(name, layer))
register_layer(nn.ReLU, lambda chain, *_: chain.activation("relu"))
register_layer(nn.Tanh, lambda chain, *_: chain.activation("tanh"))
register_layer(nn.Sigmoid, lambda chain, *_: chain.activation("sigmoid"))
register_layer(nn.ReLU6, lambda chain, *_: chain.activation("relu6"))
register_layer(nn.MaxPool2d, _pool)
register_layer(nn.Flatten, lambda chain, _, layer: chain.flatten(layer.start_dim, layer.end_dim))
register_layer(nn.Unflatten, _unflatten)
register_layer(nn.Identity, lambda *_: None)
register_layer(nn.AvgPool2d, _average)
register_layer(nn.AdaptiveAvgPool2d, lambda chain, name, layer: chain.average_to(chain.label(name), layer.output_size))
register_layer(nn.Dropout, lambda chain, name, layer: chain.dropout(chain.label(name), layer.p))
register_layer(nn.Dropout2d, _dropout_of_channels)
register_layer(nn.BatchNorm2d, _batch_norm)
register_layer(nn.GroupNorm, _group_norm)

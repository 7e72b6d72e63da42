"""What every VAE refuses: bytes for values in [-1, 1], and shapes that it would read otherwise than meant."""

import pytest
import torch

from wavecore.errors import UsageError
from wavecore.models import TAEHV, WanVAE, WanVAEConfig
from wavecore.models.sprites_vae import SpritesVAE

LATENT, VIDEO = (1, 16, 1, 4, 4), (1, 3, 1, 32, 32)


@pytest.fixture(
    scope="module",
    params=[lambda: WanVAE(WanVAEConfig(base_dim=4, num_res_blocks=1)), TAEHV, SpritesVAE],
    ids=["wan", "taehv", "sprites"],
)
def vae(request):
    torch.manual_seed(0)
    return request.param().eval().requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_bytes_are_refused(vae, dtype):
    pixels, latent = torch.ones(VIDEO, dtype=dtype), torch.ones(LATENT, dtype=dtype)
    for call, argument in [
        (vae.encode, pixels),
        (vae.stream_encoder(), pixels),
        (vae.decode, latent),
        (vae.stream_decoder(), latent),
    ]:
        with pytest.raises(UsageError, match=f": expected floating point, got {dtype}"):
            call(argument)


@pytest.mark.parametrize("shape", [VIDEO[1:], (1, 4, *VIDEO[2:])], ids=["no batch", "alpha"])
def test_pixels_of_another_shape_are_named(vae, shape):
    for encode in (vae.encode, vae.stream_encoder()):
        with pytest.raises(UsageError, match=r"(frames|video): expected \[b, 3, "):
            encode(torch.zeros(shape))


def test_latents_of_another_shape_are_named(vae):
    for shape in (LATENT[1:], (1, 3, *LATENT[2:]), (1, 16, 0, 4, 4)):
        with pytest.raises(UsageError, match=r"latents?: expected \[b, 16, 1( or more)?, height, width\]"):
            vae.decode(torch.zeros(shape))
    with pytest.raises(
        UsageError, match=r"latent: expected \[b, 16, 1, height, width\], got \[1, 16, 3, 4, 4\]"
    ):
        vae.stream_decoder()(torch.zeros(1, 16, 3, 4, 4))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_encoding_piece_by_piece_gives_the_bits_of_the_whole(vae, layout):
    video = torch.rand(1, 3, 9, 32, 32).mul(2).sub(1).to(memory_format=layout)
    encoder = vae.stream_encoder()
    parts = [encoder(frames) for frames in video.split([1, 4, 4], 2)]
    if (last := encoder.flush()) is not None:
        parts.append(last)
    assert torch.equal(torch.cat(parts, 2), vae.encode(video))

"""Which PyTorch peers do which job."""

from __future__ import annotations

from benchmarks.peers import lstm, lstm_manual, tree_fc, tree_fc_graph, tree_lstm, tree_lstm_manual
from benchmarks.peers.torch_peer import Peer
from vertexrt.bench.measure import Arrays, Contender

LSTM: dict[str, type[Peer]] = {
    "torch": lstm.StepBatched,
    "torch-manual": lstm_manual.StepBatchedManual,
    "torch-nn.LSTM": lstm.CudnnLstm,
}
KINDS: dict[str, dict[str, type[Peer]]] = {
    "tree-lstm": {
        "torch": tree_lstm.LevelBatched,
        "torch-manual": tree_lstm_manual.LevelBatchedManual,
    },
    "tree-fc": {"torch": tree_fc.LevelBatched, "torch-manual": tree_fc.LevelBatchedManual},
    "var-lstm": LSTM,
    "fixed-lstm": LSTM,
}
ON_GPU: dict[str, dict[str, type[Peer]]] = {
    "tree-fc": {"torch-graph": tree_fc_graph.CapturedLevels},
}


def torch_peers(name: str, parameters: Arrays, device: str) -> dict[str, Contender]:
    """Return the peers of a suite, on a device that PyTorch knows by the same name."""
    kinds = KINDS[name] | (ON_GPU.get(name, {}) if device == "cuda" else {})
    return {variant: kind(parameters, device) for variant, kind in kinds.items()}

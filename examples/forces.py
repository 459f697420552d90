"""Forces of a potential: minus the gradient of its energy by the positions, for any number of atoms.

$ python examples/forces.py model
$ gradcheck energy.onnx --x positions --y energy --dim atoms=4 -q
1 check: 1 passed in 0.07s
$ gradcheck grad energy.onnx --x positions --y energy -o forces.onnx
forces.onnx  39 nodes, 21 of them added
  output  positions_grad [atoms,3] float64
  open    atoms: any size at which the model runs
  run     onnxruntime.InferenceSession('forces.onnx').run(['positions_grad'], {'positions': ...})
$ python examples/forces.py
2 atoms: energy -0.160 at first, -0.160 after 1000 steps; forces add up to 0
4 atoms: energy -2.401 at first, -2.401 after 1000 steps; forces add up to 0
"""

import sys

import numpy as np


def model() -> None:
    """Writes energy.onnx: the Lennard-Jones energy of atoms at some positions, each pair counted once."""
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 18]> lj (double[atoms,3] positions) => (double energy)
        <int64[1] one = {1}, int64[1] last = {2}, int64[1] first = {0}, double half = {0.5}, double four = {4.0}> {
            rows = Unsqueeze(positions, one)
            columns = Unsqueeze(positions, first)
            apart = Sub(rows, columns)
            squares = Mul(apart, apart)
            square = ReduceSum<keepdims = 0>(squares, last)
            count = Shape<start = 0, end = 1>(positions)
            size = Concat<axis = 0>(count, count)
            zeros = ConstantOfShape<value = double[1] {0.0}>(size)
            own = EyeLike(zeros)
            away = Add(square, own)
            r2 = Reciprocal(away)
            r4 = Mul(r2, r2)
            r6 = Mul(r4, r2)
            r12 = Mul(r6, r6)
            pair = Sub(r12, r6)
            scaled = Mul(pair, four)
            total = ReduceSum<keepdims = 0>(scaled)
            energy = Mul(total, half)
        }"""
    onnx.save(onnx.parser.parse_model(text), "energy.onnx")


def falling() -> None:
    """Follows some atoms by Verlet's method, and prints what has to stay: the energy, and the sum of all forces."""
    import onnxruntime

    session = onnxruntime.InferenceSession("forces.onnx")

    def at(x: np.ndarray) -> tuple[float, np.ndarray]:
        energy, slope = session.run(["energy", "positions_grad"], {"positions": x})
        return float(energy), -slope

    for atoms in (2, 4):
        x = 1.2 * np.eye(atoms, 3) + (np.arange(atoms) == 3)[:, None] * 0.9
        v, dt = np.zeros_like(x), 0.002
        begin, force = at(x)
        for _ in range(1000):
            v += dt / 2 * force
            x = x + dt * v
            energy, force = at(x)
            v += dt / 2 * force
        kinetic, rest = 0.5 * (v**2).sum(), np.abs(force.sum(0)).max()
        print(f"{atoms} atoms: energy {begin:.3f} at first, {energy + kinetic:.3f} after 1000 steps; "
              f"forces add up to {rest:.0f}")  # fmt: skip


if __name__ == "__main__":
    model() if sys.argv[1:] == ["model"] else falling()

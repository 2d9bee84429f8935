"""Examples of schedules."""

import vertexrt as vrt

#: vrt.schedules.constant
assert vrt.schedules.constant(0.1)(5) == 0.1
#: vrt.schedules.linear
sgd = vrt.SGD(lr=vrt.schedules.linear(0.0, 1.0, steps=10))
assert sgd.lr == 0.0  # of the first update
#: vrt.schedules.step
halved = vrt.schedules.step(1.0, every=1, factor=0.5)
assert [halved(steps) for steps in range(3)] == [1.0, 0.5, 0.25]
#: vrt.schedules.cosine
schedule = vrt.schedules.cosine(1.0, steps=2)
assert [round(schedule(steps), 6) for steps in range(3)] == [1.0, 0.5, 0.0]
#: vrt.schedules.join
parts = [vrt.schedules.linear(0.1, 1.0, steps=5), vrt.schedules.cosine(1.0, steps=20)]
schedule = vrt.schedules.join(*parts, at=[5])
#: vrt.schedules.Plateau, vrt.schedules.Plateau.observe
plateau = vrt.schedules.Plateau(1.0, patience=0)
sgd = vrt.SGD(lr=plateau)
for dev_loss in (1.0, 1.0):
    plateau.observe(dev_loss)
assert sgd.lr == 0.1
#: vrt.schedules.Plateau.state, vrt.schedules.Plateau.load_state
plateau.load_state(plateau.state())

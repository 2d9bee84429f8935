"""Examples of schedules."""

import vertexrt as vrt

#: vrt.schedules.RateSchedule, vrt.schedules.LambdaLR, vrt.schedules.RateSchedule.step
sgd = vrt.SGD(lr=1.0)
schedule = vrt.schedules.LambdaLR(sgd, lambda steps: 1.0 / (1.0 + steps))
schedule.step()
assert sgd.lr == 0.5
#: vrt.schedules.RateSchedule.is_of
assert schedule.is_of(sgd)
#: vrt.schedules.RateSchedule.state, vrt.schedules.RateSchedule.load_state
schedule.load_state(schedule.state)
#: vrt.schedules.StepLR
sgd = vrt.SGD(lr=1.0)
schedule = vrt.schedules.StepLR(sgd, step_size=1, gamma=0.5)
schedule.step()
assert sgd.lr == 0.5
#: vrt.schedules.LinearLR
sgd = vrt.SGD(lr=1.0)
schedule = vrt.schedules.LinearLR(sgd, start_factor=0.5, total_iters=10)
assert sgd.lr == 0.5
#: vrt.schedules.CosineAnnealingLR
sgd = vrt.SGD(lr=1.0)
schedule = vrt.schedules.CosineAnnealingLR(sgd, T_max=2)
schedule.step()
assert round(sgd.lr, 6) == 0.5
#: vrt.schedules.SequentialLR
sgd = vrt.SGD(lr=1.0)
parts = [vrt.schedules.LinearLR(sgd, total_iters=5), vrt.schedules.CosineAnnealingLR(sgd, T_max=20)]
schedule = vrt.schedules.SequentialLR(sgd, parts, milestones=[5])
#: vrt.schedules.ReduceLROnPlateau, vrt.schedules.ReduceLROnPlateau.step
sgd = vrt.SGD(lr=1.0)
plateau = vrt.schedules.ReduceLROnPlateau(sgd, patience=0)
for dev_loss in (1.0, 1.0):
    plateau.step(dev_loss)
assert sgd.lr == 0.1
#: vrt.schedules.ReduceLROnPlateau.state, vrt.schedules.ReduceLROnPlateau.load_state
plateau.load_state(plateau.state)

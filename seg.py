import sys, pickle
sys.path.insert(0, "tests"); sys.path.insert(0, ".")
import lockstep
from strategies import plans
from hypothesis import given, settings, Phase, HealthCheck
from kvcore.scheduler import Scheduler
orig = lockstep.answer
log = []
def answer(s, events):
    if isinstance(s, Scheduler):
        log.append(events)
        with open("/tmp/last.pkl", "wb") as f: pickle.dump(log, f)
    return orig(s, events)
lockstep.answer = answer
@settings(max_examples=int(sys.argv[1]) if len(sys.argv)>1 else 500, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(plans())
def test(plan):
    log.clear(); log.append(plan.config)
    lockstep.play(plan, Scheduler)
test()

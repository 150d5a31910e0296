"""x"""
import os
from tests.parity.test_tensor_parallel import *
from tests.parity.test_tensor_parallel import curves

@pytest.mark.parametrize("aux", [0, 1])
@pytest.mark.parametrize("name", os.environ.get("EPM","mixtral").split())
@pytest.mark.parametrize("stage", os.environ.get("EPS","pt").split())
def test_ep(run, workspace, tiny_data, name, stage, aux, tmp_path_factory):
    work = tmp_path_factory.mktemp("w")
    model = work/name; make_model(name, model)
    fl = ("--save_steps","12", *(("--router_aux_loss_coef","0") if not aux else ("--router_aux_loss_coef", "0.5")))
    one = train(run, stage, model, tiny_data, work/"one", *PACKED[stage], *(("--per_device_train_batch_size","4") if not aux else ("--per_device_train_batch_size","2","--deepspeed","zero1")), *fl, launcher="python" if not aux else TWO)
    bad=[]
    for z in ([1,3] if not aux else [1,3]):
        try:
            two = train(run, stage, model, tiny_data, work/f"two{z}", *PACKED[stage], "--per_device_train_batch_size","2", "--deepspeed", f"zero{z}", "--expert_parallel_size","2",*fl, launcher=TWO)
        except AssertionError as e:
            print("ERR", name, stage, z, str(e)[-1500:]); bad.append(z); continue
        print("RES", name, stage, aux, z, furthest(two,one), one[0], two[0], one[-1], two[-1])
        if furthest(two, one)>1e-4: bad.append(z)
        assert_saved_alike(work/f"two{z}", work/"one"); assert_saved_alike(work/f"two{z}"/"checkpoint-12", work/"one"/"checkpoint-12")
        os.system(f"cd {work}/two{z} && find . -name *.pt | sort; cd checkpoint-12; ls; cat hftune_checkpoint.json | head -6")
    assert not bad

#!/usr/bin/env bash
# libroadrunner 2.10.0.
# Guess: setting a species' initial value, init(S), changes that value alone; parameters that were set are kept, as
# reset() keeps them.
# Seen: it also puts the time and all parameters back to the model's own values, without a message. Parameters must be
# set after it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet libroadrunner==2.10.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import roadrunner

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<sbml xmlns="http://www.sbml.org/sbml/level3/version1/core" level="3" version="1"><model id="decay">
<listOfCompartments><compartment id="c" size="1" spatialDimensions="3" constant="true"/></listOfCompartments>
<listOfSpecies><species id="S" compartment="c" initialConcentration="10" hasOnlySubstanceUnits="false"
  boundaryCondition="false" constant="false"/></listOfSpecies>
<listOfParameters><parameter id="k" value="0.1" constant="true"/></listOfParameters>
<listOfReactions><reaction id="r" reversible="false" fast="false">
<listOfReactants><speciesReference species="S" stoichiometry="1" constant="true"/></listOfReactants>
<kineticLaw><math xmlns="http://www.w3.org/1998/Math/MathML"><apply><times/><ci>k</ci><ci>S</ci></apply></math>
</kineticLaw></reaction></listOfReactions></model></sbml>"""
model = roadrunner.RoadRunner(MODEL)
model.k = 0.5
model.simulate(0, 5, 2)
model.reset()
print("after reset():", "k", model.k, "S", model.S)
assert (model.k, model.S) == (0.5, 10)
model.simulate(0, 5, 2)
model["init(S)"] = 20
print("after init(S):", "k", model.k, "S", model.S, "time", model.model.getTime())
assert (model.k, model.S, model.model.getTime()) == (0.1, 20, 0)
model.k = 0.5
model.reset()
assert (model.k, model.S) == (0.5, 20)
PYTHON
echo "as recorded"

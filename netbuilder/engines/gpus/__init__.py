"""Descriptions of GPUs, a JSON file each (see ``netbuilder.engines.described_gpu``)."""

"""Models of torchvision, timm and transformers, exported with random weights, read and compared with onnxruntime."""

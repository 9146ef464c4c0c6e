import babytriton as bt


def run():
    bt.integrations.transformers.optimize("bert-base-uncased")

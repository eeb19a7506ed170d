"""Rankings by cohere's two clients, and by LlamaIndex's JinaRerank, which asks as Jina's API documents it."""

import os

from pooled import JUDGE, QUERY, close_ranking, documents, ranked
from report import DoesNotApply, report, url


def cohere_client(version):
    """Client asks `/v1/rerank`, and ClientV2 `/v2/rerank`."""
    import cohere

    kind = cohere.Client if version == 1 else cohere.ClientV2
    client = kind(api_key="none", base_url=url().removesuffix("/v1"), timeout=120)

    def rank(texts, **more):
        results = client.rerank(model=JUDGE, query=QUERY, documents=texts, **more).results
        return [(entry.index, entry.relevance_score) for entry in results]

    return rank


def jina():
    """Texts are nodes there."""
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    def rank(texts, top_n=3):
        nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
        ranker = JinaRerank(model=JUDGE, base_url=url(), api_key="none", top_n=top_n)
        found = ranker.postprocess_nodes(nodes, query_bundle=QueryBundle(QUERY))
        return [(texts.index(entry.node.text), entry.score) for entry in found]

    return rank


CLIENTS = {"cohere": lambda: cohere_client(1), "cohere_v2": lambda: cohere_client(2), "jina": jina}
rank = CLIENTS[os.environ["CLIENT"]]()


def ranking():
    texts = documents()
    close_ranking(rank(texts), ranked(texts))


def top_n():
    texts = documents()
    close_ranking(rank(texts, top_n=2), ranked(texts)[:2])


def no_vectors():
    raise DoesNotApply("is tried for rankings only")


report(
    **{
        **dict.fromkeys(("vector", "several", "encodings", "dimensions", "token_ids"), no_vectors),
        "ranking": ranking,
        "top_n": top_n,
    }
)

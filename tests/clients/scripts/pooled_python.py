"""Embeddings by LangChain, LlamaIndex and LiteLLM, and LiteLLM's reranking."""

import os
from pathlib import Path

from pooled import EMBEDDER, JUDGE, QUERY, SIZE, TEXTS, close, close_ranking, documents, ranked, vectors
from report import DoesNotApply, refused, report, url

ONLY = "has embeddings only"


def langchain():
    """LangChain's OpenAIEmbeddings, which cuts texts itself if it is not told otherwise."""
    import llama_index.core
    import openai
    from langchain_openai import OpenAIEmbeddings

    # The tokenizer of OpenAI's models, which would be downloaded; LlamaIndex comes with it.
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache")

    def embeddings(**more):
        return OpenAIEmbeddings(base_url=url(), api_key="none", model=EMBEDDER, max_retries=0, **more)

    def uncut(**more):
        return embeddings(check_embedding_ctx_length=False, **more)

    def token_ids():
        refused(openai.BadRequestError, lambda: embeddings().embed_documents(TEXTS))  # the model has fewer tokens
        raise DoesNotApply(
            "by default it sends ids of OpenAI's tokens, which are refused or taken for other texts; with "
            "`check_embedding_ctx_length=False`, as measured here, it sends texts"
        )

    return {
        "vector": lambda: close([uncut().embed_query(TEXTS[0])], vectors(TEXTS[:1])),
        "several": lambda: close(uncut(chunk_size=2).embed_documents(TEXTS), vectors(TEXTS)),
        "encodings": lambda: close(
            uncut(model_kwargs={"encoding_format": "float"}).embed_documents(TEXTS), vectors(TEXTS)
        ),
        "dimensions": lambda: close(uncut(dimensions=SIZE).embed_documents(TEXTS), vectors(TEXTS, dimensions=SIZE)),
        "token_ids": token_ids,
    }


def llama_index():
    """LlamaIndex's OpenAILikeEmbedding."""
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    def embeddings(**more):
        return OpenAILikeEmbedding(model_name=EMBEDDER, api_base=url(), api_key="none", max_retries=0, **more)

    written = [text.replace("\n", " ") for text in TEXTS]  # the client does that

    def no_ids():
        raise DoesNotApply("sends texts only")

    return {
        "vector": lambda: close([embeddings().get_query_embedding(TEXTS[0])], vectors(written[:1])),
        "several": lambda: close(embeddings(embed_batch_size=2).get_text_embedding_batch(TEXTS), vectors(written)),
        "encodings": lambda: close(
            embeddings(additional_kwargs={"encoding_format": "float"}).get_text_embedding_batch(TEXTS), vectors(written)
        ),
        "dimensions": lambda: close(
            embeddings(dimensions=SIZE).get_text_embedding_batch(TEXTS), vectors(written, dimensions=SIZE)
        ),
        "token_ids": no_ids,
    }


def litellm():
    """LiteLLM, with its providers `openai` and `cohere`."""
    import litellm

    def embed(texts, **more):
        where = {"model": f"openai/{EMBEDDER}", "api_base": url(), "api_key": "none", "max_retries": 0}
        return [entry["embedding"] for entry in litellm.embedding(**where, input=texts, **more).data]

    def rank(texts, **more):
        where = {"model": f"cohere/{JUDGE}", "api_base": f"{url()}/rerank", "api_key": "none"}
        results = litellm.rerank(**where, query=QUERY, documents=texts, **more).results
        return [(entry["index"], entry["relevance_score"]) for entry in results]

    def ranking():
        texts = documents()
        close_ranking(rank(texts), ranked(texts))

    def top_n():
        texts = documents()
        close_ranking(rank(texts, top_n=2), ranked(texts)[:2])

    return {
        "vector": lambda: close(embed(TEXTS[:1]), vectors(TEXTS[:1])),
        "several": lambda: close(embed(TEXTS), vectors(TEXTS)),
        "encodings": lambda: close(embed(TEXTS, encoding_format="float"), vectors(TEXTS)),
        "dimensions": lambda: close(
            embed(TEXTS, dimensions=SIZE, allowed_openai_params=["dimensions"]), vectors(TEXTS, dimensions=SIZE)
        ),
        "token_ids": lambda: close(embed([[5, 6, 7], [8, 9]]), vectors([[5, 6, 7], [8, 9]])),
        "ranking": ranking,
        "top_n": top_n,
    }


def no_ranking():
    raise DoesNotApply(ONLY)


CLIENTS = {"langchain": langchain, "llama_index": llama_index, "litellm": litellm}
report(**{"ranking": no_ranking, "top_n": no_ranking, **CLIENTS[os.environ["CLIENT"]]()})

"""Adapters to Microsoft's SDKs: the only package that uses their private names.

If an SDK lacks a private module, class or method, importing the adapter raises an `ImportError` that names the version
that was tried (`tried_versions.TRIED`) and the one installed. Attributes of instances are pinned by the tests named
here; `make sdk-next` runs them on the newest SDKs.

- PyamqpTransport.encode_message, .to_outgoing_amqp_message; transform_outbound_messages
    The SDK shows no message's bytes, and pairbus parks them (test_sdk: the bytes on the wire).
- trace_message, is_tracing_enabled, TraceAttributes
    A parked message has the trace that it would have been sent with (test_tracing).
- PyamqpTransport.build_batch_message, .set_batch_envelope_properties; ServiceBusMessageBatch._message, ._messages
    Parked bytes are sent as they are, and the messages of a caller's batch are read (test_sdk: raw batches).
- ServiceBusMessage._raw_amqp_message, ._message; AmqpAnnotatedMessage._data_body
    Copies share no properties with the caller's objects; bodies are measured for billing (test_sdk).
- JWT_TOKEN_SCOPE, create_authentication, ServiceBusSender._auth_uri
    Credentials are tried when a pairing opens (test_credentials).
- ServiceBusSender._create_handler, ._handler; its _connection, _transport and sock
    Unbounded calls get a deadline, heartbeats need no thread each, sockets are closed (test_sdk, test_silent_tls).
- ServiceBusSender._running; the handler's _link, LinkState
    A link that was closed or detached is not used again (test_sdk: connections).
- CBSAuthenticator._on_execute_operation_complete, ._token_status_code; the handler's _cbs_authenticator
    The SDK drops the status of a refused token (test_sdk: why a token was refused).
- ServiceBusError._condition, ._status_code; AuthenticationException, TokenAuthFailure by name
    The meaning of an error is read from facts (test_classification).
- EventHubProducerClient._create_producer; EventHubProducer._open_with_retry, ._send_event_data_with_retry,
  ._unsent_events
    One link is opened once, with a deadline (test_event_hub_producer).
- encode_payload, transform_outbound_single_message, send_context_manager; EventDataBatch._load_events, ._message
    An event's bytes are parked, with the trace that it would have been sent with (test_event_hub_producer).
"""

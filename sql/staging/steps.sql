-- One row a planned step; the committed columns are null until its weights moved.
-- `policy_version` is the version the step began with, `new_version` the one it made.
-- Key: step
with first_seen as (
    select *
    from event_policy
    where type in ('step.planned', 'step.committed')
    qualify row_number() over (partition by event_id order by log_partition, log_offset) = 1
),

planned as (
    select step, policy_version, groups, set_name, seed, learning_rate, time_us
    from first_seen
    where type = 'step.planned'
),

committed as (
    select step, policy_version, digest, checkpoint, loss, gradient_norm, executions, tokens, targets,
        statistics, time_us
    from first_seen
    where type = 'step.committed'
),

final as (
    select
        p.step,
        p.policy_version,
        c.policy_version as new_version,
        p.set_name,
        p.seed,
        p.learning_rate,
        p.groups,
        c.digest,
        c.checkpoint,
        c.loss,
        c.gradient_norm,
        c.executions,
        c.tokens,
        c.targets,
        c.statistics,
        p.time_us as planned_us,
        c.time_us as committed_us
    from planned as p
    left join committed as c on c.step = p.step
)

select * from final
